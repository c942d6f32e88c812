"""Numbers found by depth and length."""
