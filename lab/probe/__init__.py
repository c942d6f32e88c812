"""The needle test: what it asks, how it is scored, and the effective length that follows from it."""
