"""The needle test: its cases, their scores, and the effective length that follows from them."""
