"""Shaping: aim f at a target by ids with gaps, or the supervised f by loss weights."""

from lab.shape.config import ShapeConfig
from lab.shape.profiles import Plan

__all__ = ["Plan", "ShapeConfig"]
