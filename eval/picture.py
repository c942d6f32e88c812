"""Drawing runs belongs to eval.report; this command names the line to use."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab.command import start

WRONG = 2


def main(arguments: Sequence[str]) -> int:
    """Name the command that draws runs."""
    sys.stderr.write("eval.picture: is part of eval.report; use python -m eval.report RUN [RUN ...] -o picture.png\n")
    return WRONG


if __name__ == "__main__":
    start(main)
