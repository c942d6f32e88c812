"""Impactful tokens of LongRecipe."""
