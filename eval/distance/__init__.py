"""Effective distance: the share of numbers found against how far back they are."""
