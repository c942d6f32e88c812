"""Effective context length of a trained model."""
