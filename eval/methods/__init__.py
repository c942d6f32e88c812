"""Position methods compared on one model and the same tests."""
