"""The tables and figures of five papers, each by one command, our numbers next to the published ones."""
