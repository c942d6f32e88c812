"""What a run leaves, and how it is read back."""
