"""Shaping: aim the supervised f at a target by loss weights."""
