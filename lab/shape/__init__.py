"""Shaping: aim f at a target by choosing segments, packing documents or skipping ids; the supervised f by weights."""

from lab.shape.config import ShapeConfig
from lab.shape.planning import Plan, plan_shape

__all__ = ["Plan", "ShapeConfig", "plan_shape"]
