"""Many runs and their results: one table, the conditions that runs fall into, and runs in Python."""
