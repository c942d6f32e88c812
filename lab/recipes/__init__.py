"""Recipes of several runs: stages are commands, and merging is one of them."""
