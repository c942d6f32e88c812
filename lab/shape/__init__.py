"""Shaping: aim f at a target by ids with gaps, or the supervised f by loss weights."""
