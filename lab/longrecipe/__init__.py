"""Extend the context window of a model by LongRecipe, stage by stage."""
