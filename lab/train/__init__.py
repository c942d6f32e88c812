"""Training of one run: where it starts, the loop, and what the loop records, saves and probes; the ranks of a run."""
