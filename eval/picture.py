"""Drawing runs belongs to eval.report; this command names the line to use."""

from __future__ import annotations

from collections.abc import Sequence

from lab.command import WRONG, show, start


def main(arguments: Sequence[str]) -> int:
    """Name the command that draws runs."""
    show("eval.picture: is part of eval.report; use python -m eval.report RUN [RUN ...] -o picture.png", error=True)
    return WRONG


if __name__ == "__main__":
    start(main)
