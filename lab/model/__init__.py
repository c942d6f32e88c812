"""The decoder, its attention and loss, generation and the training step."""
