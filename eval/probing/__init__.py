"""Needle tests shown by length, by depth and by method, for eval.probe."""
