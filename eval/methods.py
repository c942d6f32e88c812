"""This measure is part of eval.probe; this command names the line to use."""

from __future__ import annotations

from collections.abc import Sequence

from lab.command import WRONG, show, start


def main(arguments: Sequence[str]) -> int:
    """Name the command to use."""
    show("eval.methods: is part of eval.probe; use python -m eval.probe MODEL --distance=rope,dca,string", error=True)
    return WRONG


if __name__ == "__main__":
    start(main)
