"""The tables and figures of five papers, each by one command, ours beside theirs: probe-lab papers."""
