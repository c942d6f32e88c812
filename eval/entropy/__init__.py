"""Attention entropy by layer and number of visible tokens."""
