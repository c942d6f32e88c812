"""Attention of un-rotated queries and keys under any position method and mask."""

from lab.model.attention.attend import attend

__all__ = ["attend"]
