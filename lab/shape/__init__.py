"""Shaping: aim the position frequency at a target by choosing segments, packing documents or skipping ids."""

from lab.shape.config import ShapeConfig
from lab.shape.planning import Plan, plan_shape

__all__ = ["Plan", "ShapeConfig", "plan_shape"]
