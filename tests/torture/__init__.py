"""Faults at random moments and long runs, with counts by --torture; python -m tests.torture runs them by row."""
