"""The settings at which methods are compared: all follow from the training length L and the length T of the tests.

arXiv:2410.18745, section 4.2 (Baselines, Table 1), tests every method at T = L. The methods that extrapolate are
set as if the training length were two thirds of L, so that the test is 3/2 as long:

    L' = 2/3 L,   factor = T / L' = 3/2                                                            (T = L)

Shorter tests keep these settings, as the paper sets a model up once. For longer ones, which the paper lacks, L' is
two thirds of the test's length, and the true training length at most. From there on methods extrapolate for real:

    L' = min(L, floor(2/3 T)),   factor = 3/2 for T <= 3/2 L,  else T / L                           (T > L)

    rope         the model's own frequencies, plain distance
    ntk          NTK-aware, factor
    yarn         YaRN, factor, train_len = L'
    rerope       w = L'/4, logits times the log-n factor of L' (the released code's results: 1024 of 4096, log n always)
    self_extend  w = L'/4 (Jin et al. 2024: 512 of Phi-2's 2048), G the smallest that keeps positions within L':
                 w + (T - w) / G <= L'
    dca          pretraining window c = L', chunk 3c/4 and local window c - s, the defaults of its own paper
    string       S = ceil(L/3), the least of the paper's L/3 <= S <= L/2, and W = 128, S // 2 where that is less (the
                 paper has W = 128 and W >= 32, far below S)

Everything else is as the model has it: ntk and yarn take the place of its frequencies at its theta, the others keep
its frequencies.

A word of --distance or --frequency is NAME, which takes these parameters, or NAME:parameter=value,parameter=value.
"""

import glob
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.engine.rows import natural_key
from lab import config
from lab.core import command, schema
from lab.core.arguments import parse_method
from lab.core.errors import CheckpointError, ConfigError, abbreviate, look_up
from lab.data.text_files import expand_pattern
from lab.model.huggingface.config import model_settings
from lab.positions import Distance, Frequencies, distance, frequencies, methods, string
from lab.runs.source import CONFIG, find_place, is_hub_id, revisions

METHODS = ("rope", "ntk", "yarn", "rerope", "self_extend", "dca", "string")
DERIVED = {"distance": ("string", "dca", "self_extend", "rerope"), "frequency": ("ntk", "yarn")}


@dataclass(frozen=True)
class Setting:
    """A method's parameters, the training length assumed for it, and the word of the command line that names it."""

    method: str
    assumed_len: int
    parameters: dict[str, Any]
    word: str

    def build(self, base: Frequencies) -> tuple[Frequencies, Distance]:
        """Build the methods for a model that has frequencies of its own.

        Raises: ConfigError for parameters out of a method's range.
        """
        try:
            if self.method in DERIVED["frequency"]:
                head_dim = 2 * len(base.inv_freq)
                own = frequencies(self.method, head_dim=head_dim, theta=base.theta, **self.parameters)
                return own, distance("plain")
            return base, distance("plain" if self.method == "rope" else self.method, **self.parameters)
        except ConfigError as error:
            raise ConfigError(*(f"--distance={self.word}: {message}" for message in error.errors)) from error


def setting(word: str, train_len: int, length: int) -> Setting:
    """Derive a method's settings from the training length and the length of the tests, but for those the word gives.

    Units: tokens.
    Raises: ConfigError for an unknown method, or a parameter that is not name=value.
    Example:
        >>> setting("string", 2048, 2048).parameters
        {'shift': 683, 'window': 128}
        >>> setting("self_extend", 192, 192).parameters, setting("self_extend", 192, 192).assumed_len
        ({'group': 2, 'window': 32}, 128)
        >>> setting("string:window=8", 192, 192).parameters
        {'shift': 64, 'window': 8}
    """
    named = parse_method(word, "--distance")
    method = named.pop("method")
    # Tests shorter than the training length keep the settings of those as long as it.
    target = max(train_len, length)
    assumed = min(train_len, max(1, 2 * target // 3))
    factor = 1.5 if 2 * target <= 3 * train_len else target / train_len
    quarter = assumed // 4
    chunk = max(1, 3 * assumed // 4)
    group = -(-(target - quarter) // (assumed - quarter))  # the smallest with w + (T - w) / G <= L'
    derived: dict[str, dict[str, Any]] = {
        "rope": {},
        "ntk": {"factor": factor},
        "yarn": {"factor": factor, "train_len": assumed},
        "rerope": {"window": quarter, "log_n": max(2, assumed)},
        "self_extend": {"group": group, "window": quarter},
        "dca": {"train_len": assumed, "chunk": chunk, "window": assumed - chunk},
        "string": string.paper_parameters(train_len),
    }
    parameters = {**look_up(derived, method, "--distance"), **named}
    assumed_len = named.get("train_len", train_len if method in ("rope", "string") else assumed)
    return Setting(method, assumed_len, parameters, word)


@contextmanager
def report_as_options() -> Iterator[None]:
    """Report errors of settings by the names of the options that set them; those of a probe lack its prefixes."""
    try:
        yield
    except ConfigError as error:
        errors = []
        for message in error.errors:
            named = message.replace("probe.", "--").replace("distance_", "")
            errors.append(f"--{named.removeprefix('--')}")
        raise ConfigError(*errors) from error


def read_parameters(kind: str, word: str, train_len: Callable[[], int], length: int | None) -> dict[str, Any]:
    """Read a word as the settings of a method; a name alone takes derived ones, where there are such.

    Raises: ConfigError.
    """
    named = parse_method(word, f"--{kind}")
    # Derived settings are a set that belongs together: one given parameter turns all of them off.
    if len(named) > 1 or named["method"] not in DERIVED[kind]:
        return named
    return {**named, **setting(named["method"], train_len(), length or train_len()).parameters}


def read_distance(word: str, train_len: int, length: int) -> Distance:
    """Build the method that a word names, for texts of a length.

    Raises: ConfigError, whose lines name settings as --distance.parameter.
    """
    settings = read_parameters("distance", word, lambda: train_len, length)
    with report_as_options():
        return schema.validated(methods.PositionConfig, {"distance": settings}).distance


def split_words(text: str) -> list[str]:
    """Split several words at the commas between them, not at those between parameters.

    Example:
        >>> split_words("rope, string:shift=64,window=32,dca")
        ['rope', 'string:shift=64,window=32', 'dca']
    """
    # A comma with `name=` behind it, before any comma or colon, separates two parameters.
    return re.split(r" *, *(?![^,:]*=)", text.strip()) if text else []


def method_overrides(model: Path, words: Mapping[str, str | None], length: int | None) -> dict[str, Any]:
    """Read the words of --distance and --frequency as settings of a model, for texts of a length, or of its window.

    Raises: LabError, also for a model that cannot be opened; its weights are not read.
    """
    overrides: dict[str, Any] = {}
    for kind, word in words.items():
        if word is not None:
            for name, value in read_parameters(kind, word, lambda: read_train_len(model), length).items():
                overrides[f"position.{kind}.{name}"] = value
    return overrides


def read_train_len(model: Path) -> int:
    """Read the training window of a model, without its weights."""
    place = find_place(model)
    if place.is_hugging_face:
        return int(model_settings(place.folder)["max_position_embeddings"])
    return config.load_experiment(place.home / CONFIG).data.window


def is_model(place: Path) -> bool:
    try:
        return bool(find_place(place))
    except CheckpointError:
        return False


def expand(words: Sequence[str], takes: Callable[[Path], object] = is_model) -> list[Path]:
    """List the places that words name: themselves, or the folders, files or revisions that match a pattern.

    Matches are ordered by name, numbers in it by size. A note names those that the command does not take. Where it
    takes none, the pattern is a place, which the command rejects.
    """
    models: list[Path] = []
    for word in words:
        path = Path(word)
        # A folder may have a bracket or a star in its name, and is then no pattern.
        if not glob.has_magic(word) or path.exists():
            models.append(path)
            continue
        on_hub = is_hub_id(path)
        taken = []
        others = []
        # Revisions of a hub are not opened here, because that would download their weights.
        for match in sorted(revisions(word) if on_hub else map(str, expand_pattern(path)), key=natural_key):
            place = Path(match)
            if on_hub or takes(place):
                taken.append(place)
            else:
                others.append(place.name)
        if taken and others:
            left_out = abbreviate(", ".join(others))
            command.show(f"{word}: skipped {left_out}, which this command does not take", error=True)
        models += taken or [path]
    return models


def name_paths(places: Sequence[Path]) -> list[str]:
    """Name places by their last part, or by all parts where two places share the last.

    Example:
        >>> name_paths([Path("runs/a"), Path("hf:x/b@step1")]), name_paths([Path("x/1/hf"), Path("x/2/hf")])
        (['a', 'b@step1'], ['x-1-hf', 'x-2-hf'])
    """
    names = [place.name for place in places]
    return names if len({*names}) == len(names) else [str(place).strip("/").replace("/", "-") for place in places]
