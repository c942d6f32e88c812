"""One page about any number of runs: what was asked and found, figures, tables, provenance."""
