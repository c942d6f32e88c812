"""What the commands that measure a model on texts share: their options, where results go, and what a result names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch

from lab.errors import ConfigError
from lab.files import writing
from lab.positions import Distance
from lab.runs.environment import commit, processor
from lab.schema import NonNegative, Positive, Section
from lab.settings import Raw, all_settings, parse_overrides, take_option, validated

ELSEWHERE = ("rows", "device")  # options that change no number
Output = Literal["picture", "folder"]  # what -o names


@dataclass(frozen=True, kw_only=True)
class Options(Section):
    """Options of every measurement."""

    texts: Positive = 10
    """Texts, pieces of the source that do not overlap."""
    text: str | None = None
    """Source of the texts, a .txt, .json or .jsonl file; left out, a run's corpus: held-out documents, fresh filler."""
    seed: NonNegative = 0
    """Seed of the choice of texts, and of what else is drawn."""
    rows: str | None = None
    """File for the results, one JSON object a line; left out, in eval/ of the run folder, or in runs/."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""

    def rules(self) -> list[str]:
        """Refuse rows that would not be rows."""
        wrong = self.rows is not None and not self.rows.endswith(".jsonl")
        return [f"rows={self.rows}: must end in .jsonl; name the file of results"] if wrong else []


@dataclass(frozen=True, kw_only=True)
class CellOptions(Section):
    """Options of every measurement that is made of cells."""

    seed: NonNegative = 0
    """Seed of all that is drawn."""
    batch: Positive | None = None
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

    -o names the `picture`, or, for commands that collect results in one place, the `folder` of all results.
    """

    model: Path
    options: Any
    overrides: dict[str, Any]
    plots: bool
    picture: Path | None
    folder: Path | None = None


class Model(Protocol):
    """What results say of a model."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        ...

    @property
    def method(self) -> str:
        """Position methods."""
        ...

    @property
    def folder(self) -> Path | None:
        """Run folder, if it has one."""
        ...

    @property
    def consumed_tokens(self) -> int | None:
        """Tokens it was trained on, if known."""
        ...


def read_request(arguments: Sequence[str], options_class: type[Section], *, output: Output = "picture") -> Request:
    """Read a command line: MODEL, options, position.* of the model, --plot and -o, which names what `output` says.

    Raises: ConfigError with a line for every fault, options named as they are written.
    """
    words = list(arguments)
    if words[0].startswith("-"):
        raise ConfigError(
            f"{words[0]}: MODEL must be the first argument, a run folder, a checkpoint in it, or a Hugging Face folder"
        )
    place, plots = take_option(words, "-o"), "--plot" in words
    given = parse_overrides([word for word in words[1:] if word != "--plot"])
    overrides = {key: value for key, value in given.items() if key.startswith("position.")}
    own = {key: value for key, value in given.items() if key not in (*overrides, "plot")}
    faults = ["--plot: takes no value; leave the value out"] if "plot" in given else []
    faults += picture_faults(place, plots or "plot" in given) if output == "picture" else []
    options = None
    try:
        options = validated(options_class, Raw(with_lists(own, options_class), "options"))
    except ConfigError as error:
        faults += [f"--{fault}" for fault in error.faults]
    if faults:
        raise ConfigError(*faults)
    named = Path(place) if place else None
    picture, folder = (named, None) if output == "picture" else (None, named)
    return Request(Path(words[0]), options, overrides, plots, picture, folder)


def with_lists(given: Mapping[str, Any], options_class: type[Any]) -> dict[str, Any]:
    """Read `64,128`, `64` and `vt,cwe` as lists where an option is a list.

    Example:
        >>> with_lists({"texts": 3}, Options)
        {'texts': 3}
    """
    kinds = {field.name: str(field.type) for field in fields(options_class) if "tuple" in str(field.type)}
    readers = {name: as_words if "tuple[str" in kind else as_list for name, kind in kinds.items()}
    return {name: readers[name](value) if name in readers else value for name, value in given.items()}


def as_words(value: Any) -> Any:
    """Read one word, or several between commas, as a list; anything else is left for the reader to refuse.

    Example:
        >>> as_words("vt, cwe"), as_words("vt"), as_words(3)
        (['vt', 'cwe'], ['vt'], 3)
    """
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def as_list(value: Any) -> Any:
    """Read one number, or several between commas, as a list; anything else is left for the reader to refuse.

    Example:
        >>> as_list("64,128"), as_list(64), as_list("a few")
        ([64, 128], [64], 'a few')
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    words = value.split(",") if isinstance(value, str) else []
    return [int(word) for word in words] if words and all(word.strip().isdecimal() for word in words) else value


def picture_faults(place: str | None, plots: bool) -> list[str]:
    """Refuse a picture that is none, or that nothing is drawn to."""
    if place is None:
        return []
    if not plots:
        return [f"-o {place}: would be ignored, nothing is drawn; add --plot"]
    return [] if place.endswith(".png") else [f"-o {place}: must end in .png; name the picture"]


def help_text(description: str, options_class: type[Section], *, output: Output = "picture") -> str:
    """Describe a command and its options."""
    lines = [description, "Options (default; meaning):", ""]
    lines += [f"  --{n}={default}\n      {' '.join(text.split())}" for n, default, text in all_settings(options_class)]
    beside = "Draw the picture, to FILE.png where -o FILE.png is given, else beside the results."
    lines += [f"  --plot\n      {beside if output == 'picture' else 'Draw the picture beside the results.'}"]
    lines += ["  --position.distance.method=NAME, --position.frequency.method=NAME, and their parameters"]
    return "\n".join([*lines, "      Position methods in place of the model's own."])


def device_for(name: str) -> torch.device:
    """Find the device to compute on.

    Raises: ConfigError for a GPU that is not there.
    """
    available = torch.cuda.is_available()
    if name == "gpu" and not available:
        raise ConfigError("--device=gpu: this machine has no CUDA device; use cpu or auto")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def refuse_idle_distance(overrides: Mapping[str, Any], distance: Distance, n_tokens: int) -> None:
    """Refuse a distance method that is asked for and changes nothing in texts of this length.

    Raises: ConfigError.
    """
    asked = any(key.startswith("position.distance.") for key in overrides)
    faults = distance.config.length_faults(n_tokens) if asked else []
    if faults:
        raise ConfigError(*(f"--position.distance.{fault}" for fault in faults))


def doublings(first: int, last: int) -> tuple[int, ...]:
    """List the powers of two from `first` up to `last`, or `last` alone where there is none.

    Example:
        >>> doublings(2, 12), doublings(64, 8)
        ((2, 4, 8), (8,))
    """
    return tuple(2**k for k in range(last.bit_length()) if first <= 2**k <= last) or (last,)


def result_files(kind: str, request: Request, model: Model) -> tuple[Path, Path | None]:
    """Name the files of results and of the picture, and make their folder before time is spent on them.

    The names follow from the checkpoint and the settings, so that the same measurement lands in the same place.

    Raises: ConfigError where the folder cannot be made.
    """
    settings = {key: value for key, value in asdict(request.options).items() if key not in ELSEWHERE}
    text = json.dumps({**settings, "method": model.method}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    if model.folder is None or model.consumed_tokens is None:
        stem = Path("runs") / f"{kind}-{model.name}-{digest}"
    else:
        stem = model.folder / "eval" / f"{kind}-{model.consumed_tokens:015d}-{digest}"
    rows = Path(request.options.rows or f"{stem}.jsonl")
    with writing(f"--rows={rows}", "file"):
        rows.parent.mkdir(parents=True, exist_ok=True)
    picture = request.picture or Path(f"{stem}.png")
    return rows, picture if request.plots else None


def title(model: Model, texts: int) -> str:
    """Head a picture."""
    return f"{model.name}: {model.method}; {texts} text{'s' * (texts != 1)}"


def source(model: Model, device: torch.device) -> dict[str, Any]:
    """Name the model, the code and the hardware that results come from."""
    return {
        "model": model.name,
        "consumed_tokens": model.consumed_tokens,
        "commit": commit(),
        "hardware": processor(device),
        "method": model.method,
    }
