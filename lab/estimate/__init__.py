"""Estimates of a run's memory, work and disk space, on any machine, before it runs."""
