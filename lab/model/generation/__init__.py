"""Greedy generation."""
