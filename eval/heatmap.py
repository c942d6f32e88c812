"""This measure is part of eval.probe; this command names the line to use."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab.command import start

WRONG = 2


def main(arguments: Sequence[str]) -> int:
    """Name the command to use."""
    sys.stderr.write("eval.heatmap: is part of eval.probe; use python -m eval.probe MODEL --by=depth\n")
    return WRONG


if __name__ == "__main__":
    start(main)
