"""The run folder: its files, its checkpoints, where it was made."""
