"""The experiments of docs/findings.md: window, tokens, and position frequency at equal retrieval demand."""
