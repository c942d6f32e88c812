"""Position methods by words of a command line: NAME, or NAME:parameter=value,parameter=value.

A name alone takes the parameters of lab.positions.resolution; so do those of STRING that a word omits. Everything else
is as the model has it: ntk and yarn take the place of its frequencies at its theta, the others keep its frequencies.
"""

import glob
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eval.engine.text import natural_key
from lab import config
from lab.config.settings import Settings
from lab.core import command, schema
from lab.core.arguments import parse_method
from lab.core.errors import CheckpointError, ConfigError, abbreviate, look_up
from lab.data.text_files import expand_pattern
from lab.model.huggingface.config import model_settings
from lab.positions import Distance, Frequencies, distance, frequencies, methods
from lab.positions.resolution import assumed_len, resolve
from lab.runs.source import CONFIG, find_place, is_hub_id, revisions

METHODS = ("rope", "ntk", "yarn", "rerope", "self_extend", "dca", "string")


@dataclass(frozen=True)
class Setting:
    """A method's parameters, the training length assumed for it, and the word of the command line that names it."""

    method: str
    assumed_len: int
    parameters: Settings
    word: str

    def build(self, base: Frequencies) -> tuple[Frequencies, Distance]:
        """Build the methods for a model that has frequencies of its own.

        Raises: ConfigError for parameters out of a method's range.
        """
        method, parameters = self.method, self.parameters
        try:
            if method in ("ntk", "yarn"):
                base = frequencies(method, head_dim=2 * len(base.inv_freq), theta=base.theta, **parameters)
                method, parameters = "plain", {}
            return base, distance("plain" if method == "rope" else method, **parameters)
        except ConfigError as error:
            raise ConfigError(*(f"--distance={self.word}: {message}" for message in error.errors)) from error


def setting(word: str, train_len: int, length: int) -> Setting:
    """Derive a method's settings from the training length and the length of the tests, but for those the word gives.

    Units: tokens.
    Raises: ConfigError for an unknown method, or a parameter that is not name=value.
    Example:
        >>> setting("self_extend", 192, 192).parameters, setting("self_extend", 192, 192).assumed_len
        ({'group': 2, 'window': 32}, 128)
        >>> setting("string:window=8", 192, 192).parameters
        {'shift': 64, 'window': 8}
    """
    named = parse_method(word, "--distance")
    method = look_up({name: name for name in METHODS}, named.pop("method"), "--distance")
    assumed = train_len if method in ("rope", "string") else assumed_len(length, train_len)
    parameters = resolve(method, length, train_len) | named
    return Setting(method, named.get("train_len", assumed), parameters, word)


@contextmanager
def report_as_options() -> Iterator[None]:
    """Report errors of settings by the names of the options that set them; those of a probe lack its prefixes."""
    try:
        yield
    except ConfigError as error:
        named = [message.replace("probe.", "--").replace("distance_", "") for message in error.errors]
        raise ConfigError(*[f"--{message.removeprefix('--')}" for message in named]) from error


def read_method(kind: str, word: str, train_len: Callable[[], int], length: int | None) -> Settings:
    """Read a word as the settings of a method; a name alone takes derived ones, if the method has them.

    Raises: ConfigError.
    """
    named = parse_method(word, f"--{kind}")
    method = named["method"]
    # Derived settings are a set that belongs together: one given parameter turns all of them off, but for STRING's,
    # which configs may omit one by one.
    if len(named) == 1 or method == "string":
        window = train_len()
        named = resolve(method, length or window, window) | named
    return named


def read_distance(word: str, train_len: int, length: int) -> Distance:
    """Build the method that a word names, for texts of a length.

    Raises: ConfigError, whose lines name settings as --distance.parameter.
    """
    settings = read_method("distance", word, lambda: train_len, length)
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


def method_overrides(model: Path, words: Mapping[str, str | None], length: int | None) -> Settings:
    """Read the words of --distance and --frequency as settings of a model, for texts of a length, or of its window.

    Raises: LabError, also for a model that cannot be opened; its weights are not read.
    """
    overrides: Settings = {}
    for kind, word in words.items():
        if word is not None:
            for name, value in read_method(kind, word, lambda: read_train_len(model), length).items():
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
    for path in map(Path, words):
        # A folder may have a bracket or a star in its name, and is then no pattern.
        if not glob.has_magic(str(path)) or path.exists():
            models.append(path)
            continue
        on_hub = is_hub_id(path)
        matches = revisions(str(path)) if on_hub else expand_pattern(path)
        places = [Path(name) for name in sorted(map(str, matches), key=natural_key)]
        # Revisions of a hub are not opened here, because that would download their weights.
        taken = [place for place in places if on_hub or takes(place)]
        others = ", ".join([place.name for place in places if place not in taken])
        if taken and others:
            command.show(f"{path}: skipped {abbreviate(others)}, which this command does not take", error=True)
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
