"""The command line of commands that measure a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eval.common.measuring import Output, Request, help_text, read_request
from lab import command
from lab.schema import Section


def run(
    description: str | None,
    options_class: type[Section],
    measure: Callable[[Request], str],
    arguments: Sequence[str],
    *,
    output: Output = "picture",
    stopped: str = command.GOES_ON,
) -> int:
    """Read the command line, print what `measure` returns, and return the exit status."""

    def work(words: list[str]) -> str:
        return measure(read_request(words, options_class, output=output))

    def describe() -> str:
        return help_text(str(description), options_class, output=output)

    return command.run(describe, arguments, work, stopped=stopped)
