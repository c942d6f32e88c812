"""The command line of commands that measure a model: MODEL, their options, its position methods, --plot and -o."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lab import command
from lab.command import Syntax, Words, bare_settings, read_options, settings_lines
from lab.schema import PathText, Section, Seed, Tests

Output = Literal["picture", "folder"]  # what -o names
MODEL = "{word}: MODEL must be the first argument; give a run folder, a checkpoint in it, or a Hugging Face folder"


@dataclass(frozen=True, kw_only=True)
class Options(Section):
    """Options of measurements on texts."""

    texts: Tests = 10
    """Texts, pieces of the source that do not overlap."""
    text: PathText | None = None
    """Source of the texts, a .txt, .json or .jsonl file; left out, a run's corpus: held-out documents, fresh filler."""
    text_field: str = "text"
    """Field of the rows of a .json or .jsonl file that holds the text."""
    seed: Seed = 0
    """Seed of the choice of texts, and of what else is drawn."""
    rows: PathText | None = None
    """File for the results, one JSON object a line; left out, in eval/ of the run folder, or in runs/."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""

    def rules(self) -> list[str]:
        """Refuse a file of rows with another ending."""
        wrong = self.rows is not None and not self.rows.endswith(".jsonl")
        return [f"rows={self.rows}: must end in .jsonl; name the file of results"] if wrong else []


@dataclass(frozen=True, kw_only=True)
class CellOptions(Section):
    """Options of measurements that are made of cells."""

    seed: Seed = 0
    """Seed of all that is drawn."""
    batch: Tests | None = None
    """Rows that the model runs side by side; left out, as many as have 16384 tokens together, 64 at most."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""

    def rows(self, length: int) -> int:
        """Choose how many rows of a length run side by side.

        Example:
            >>> CellOptions().rows(128), CellOptions().rows(8192), CellOptions(batch=3).rows(128)
            (64, 2, 3)
        """
        return self.batch or max(1, min(64, 16_384 // length))


class Request(NamedTuple):
    """What a command line asks for; `overrides` are the model's position methods.

    -o names the `picture`, or, for commands that collect results in one place, the `folder` of all results. `distances`
    are the values of --distance, for commands that take it.
    """

    model: Path
    options: Any
    overrides: dict[str, Any]
    plots: bool
    picture: Path | None
    folder: Path | None = None
    distances: tuple[str, ...] = ()


def run(
    description: str | None,
    options_class: type[Section],
    measure: Callable[[Request], str | int],
    arguments: Sequence[str],
    *,
    output: Output = "picture",
    lists: tuple[str, ...] = (),
    stopped: str = command.CONTINUES,
) -> int:
    """Read the command line, print the text that `measure` returns, and return the exit status."""

    def work(words: Words) -> str | int:
        return measure(read_request(words, options_class, output=output))

    def settings() -> list[str]:
        beside = "to FILE.png where -o FILE.png is given, else beside the results"
        return [
            "Options (default; meaning):",
            "",
            *settings_lines(options_class),
            f"  --plot\n      Draw the picture{f', {beside}' if output == 'picture' else ' beside the results'}.",
            "  --position.distance.method=NAME, --position.frequency.method=NAME, and their parameters",
            "      Position methods in place of the model's own.",
        ]

    syntax = Syntax(flags=("--plot",), values=("-o",), lists=lists, bare=bare_settings(options_class), missing=MODEL)
    return command.run(description, arguments, work, syntax=syntax, settings=settings, stopped=stopped)


def read_request(words: Words, options_class: type[Section], *, output: Output = "picture") -> Request:
    """Read a command line.

    Raises: ConfigError with a line for every fault, options named as they are written.
    """
    model, plots = Path(words.places[0]), words.options.plot
    overrides = {key: value for key, value in words.settings.items() if key.startswith("position.")}
    own = {key: value for key, value in words.settings.items() if key not in overrides}
    faults = picture_faults(words.options.o, plots) if output == "picture" else []
    options = read_options(options_class, own, faults)
    place = Path(words.options.o) if words.options.o else None
    distances = tuple(getattr(words.options, "distance", None) or ())
    picture, folder = (place, None) if output == "picture" else (None, place)
    return Request(model, options, overrides, plots, picture, folder, distances)


def picture_faults(place: str | None, plots: bool) -> list[str]:
    """Refuse a picture with another ending, or one that nothing is drawn to."""
    if place is None:
        return []
    if not plots:
        return [f"-o {place}: would be ignored, nothing is drawn; add --plot"]
    return [] if place.endswith(".png") else [f"-o {place}: must end in .png; name the picture"]
