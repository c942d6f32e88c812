"""The tables and figures of five papers, each by one command, ours beside theirs: python -m eval.papers."""
