"""Sweeps in wandb's format, run on this machine without a server."""
