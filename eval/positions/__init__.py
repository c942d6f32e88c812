"""Relative positions of a method, and how often training has seen them."""
