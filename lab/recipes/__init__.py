"""Recipes of several runs, whose stages are commands, among them merging."""
