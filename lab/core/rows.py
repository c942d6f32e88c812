"""Rows of results: lines of a file of records."""

from typing import Any

Row = dict[str, Any]
CONFIDENCE = 0.95  # of the limits in a row, by default
