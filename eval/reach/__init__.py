"""Reach explained by position frequency, tokens, window and rotary base in one regression."""
