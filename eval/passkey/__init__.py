"""Passkey retrieval by depth and length."""
