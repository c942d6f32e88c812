"""Experiments that can be run again: what they predict, train and compare, and their records."""
