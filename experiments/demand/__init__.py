"""The experiments of docs/demand.md."""
