"""A run's settings as plain values, merged from its file, the command line and the model that it starts from; no torch.

`load_settings` merges these layers. A setting is that of the last layer that has it:

    derived      settings that follow from others (`derive`)
    inherited    architecture, tokenizer and positions of the model that start.path names (`inherit`)
    file         the YAML file
    overrides    the command line's dotted settings

Layers join section by section. If the upper layer selects another member of a union, for instance another
position.frequency.method, the lower member's settings are dropped.
"""

import difflib
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from lab.core.errors import ConfigError, abbreviate, is_short
from lab.core.plugins import load_plugins
from lab.core.schema import TAGS
from lab.core.yaml import flatten, part, read_yaml
from lab.data.config import CORPORA, Bpe, DataConfig
from lab.data.tokenizer import load_tokenizer
from lab.positions.resolution import resolve
from lab.runs.source import ARCHITECTURE, CONFIG, EXPERIMENT, FREE, read_run_config, read_source

Settings = dict[str, Any]  # by section and name
DEFAULT_MEMBERS = {
    "data.corpus.name": "synthetic",
    "data.tokenizer.method": "bpe",
    "position.frequency.method": "rope",
    "position.distance.method": "plain",
    "mask.method": "causal",
    "evidence.method": "repeat",
}
MEMBERS_WITH_PATH = {"data.corpus.name": "text", "data.tokenizer.method": "file"}


def load_settings(path: Path, overrides: Mapping[str, object]) -> Settings:
    """Read a config and merge its layers; execute the plugins that it names.

    Raises: ConfigError, CheckpointError.
    """
    is_of_run = path.name in (CONFIG, EXPERIMENT)
    file = read_run_config(path) if is_of_run else read_yaml(path)
    changes = flatten(dict(overrides))
    if "plugins" in changes:
        load_plugins(changes["plugins"])
    else:
        # A run folder has copies of its plugins.
        load_plugins(file.get("plugins"), str(path), path.parent if is_of_run else None)

    above = nest(changes)
    expand_mixture(file)
    expand_mixture(above)
    # An empty section of the file, `model:` with nothing below it, inherits like a missing one.
    for name in ("model", "data", "position"):
        section(file, name)
    name_members(file, part)
    imply_text(file, above)
    # The tags of the file are known by now, so that an override that repeats one keeps the member's settings.
    stated = merge_layers(file, above)
    # A file states a method or a layer pattern as a whole, so that a start adds nothing within what the file names.
    settings = merge_layers(inherit(file, stated), stated)
    name_members(settings, section)
    derive(settings, config_name(path))
    return settings


def config_name(path: Path) -> str:
    """Return the default name of a run: that of its file, or of the folder of a config.yaml."""
    return path.parent.name if path.stem == "config" else path.stem


def nest(dotted: Mapping[str, object]) -> Settings:
    """Turn dotted keys into sections.

    Example:
        >>> nest({"optim.lr": 1.0, "optim.beta2": 0.9, "skip": None})
        {'optim': {'lr': 1.0, 'beta2': 0.9}, 'skip': None}

    Raises: ConfigError for a setting that is set as a whole and in part.
    """
    values: Settings = {}
    for name, value in dotted.items():
        *parents, last = name.split(".")
        reduce(section, parents, values)[last] = value
    dotted = flatten(dict(dotted))
    for name in sorted(dotted.keys() - flatten(values).keys()):
        raise ConfigError(f"{name}={abbreviate(dotted[name])}: is set as a whole and in part; remove one of the two")
    return values


def expand_mixture(layer: Settings) -> None:
    """Replace a list of corpora, each with its weight, by the section of a mixture.

    Example:
        >>> data = {"corpus": [{"name": "stdlib", "weight": 0.7}, {"path": "notes", "weight": 0.3}]}
        >>> expand_mixture({"data": data})
        >>> data["corpus"]["corpora"], data["corpus"]["weights"]
        ([{'name': 'stdlib'}, {'name': 'text', 'path': 'notes'}], [0.7, 0.3])

    Raises: ConfigError for a corpus without a weight.
    """
    data = part(layer, "data")
    listed = data.get("corpus")
    if isinstance(listed, list):
        corpora = [{"name": "text", **part({"": corpus}, "")} for corpus in listed]
        for index, corpus in enumerate(corpora):
            if "weight" not in corpus:
                entry = f"data.corpus.{index}"
                for name in difflib.get_close_matches("weight", map(str, corpus)):
                    raise ConfigError(f"{entry}.{name}={corpus[name]}: unknown setting; did you mean {entry}.weight?")
                raise ConfigError(f"{entry}.weight: must be set; give the corpus's share of the packs, above 0")
        data["corpus"] = {
            "name": "mixture",
            "corpora": corpora,
            "weights": [corpus.pop("weight") for corpus in corpora],
        }


def merge_layers(lower: Mapping[str, object], upper: Mapping[str, object], prefix: str = "") -> Settings:
    """Join two layers of settings, whose dotted names begin with `prefix`; the upper one wins.

    Example:
        >>> merge_layers({"mask": {"chunks": 2}, "skip": {}}, {"mask": {"method": "document"}, "skip": None})
        {'mask': {'chunks': 2, 'method': 'document'}, 'skip': None}
        >>> merge_layers({"data": {"corpus": {"name": "text", "path": "a"}}}, {"data": {"corpus": {"name": "stdlib"}}})
        {'data': {'corpus': {'name': 'stdlib'}}}

    Raises: ConfigError for a section above a value.
    """
    # `name` in the section run is no tag, and sections of the first level keep their settings.
    if prefix.count(".") > 1 and any(tag in upper and upper[tag] != lower.get(tag) for tag in TAGS):
        return dict(upper)
    merged = dict(lower)
    for name, value in upper.items():
        below = lower.get(name)
        if not isinstance(value, dict) or below is None:
            merged[name] = value
        elif isinstance(below, dict):
            merged[name] = merge_layers(below, value, f"{prefix}{name}.")
        else:
            raise ConfigError(
                f"{prefix}{name}={abbreviate(value)}: a section cannot change {abbreviate(below)}, which is a value; "
                "remove one of the two"
            )
    return merged


def section(values: Settings, key: str) -> Settings:
    """Return a section, made if it is missing; a value of another type is left for the reader to reject."""
    if values.get(key) is None:  # also a YAML key with nothing below it
        values[key] = {}
    return values[key] if isinstance(values[key], dict) else {}


def name_members(values: Settings, find: Callable[[Settings, str], Settings]) -> None:
    """Add the tags of unions that were omitted; `find` is `section`, or `part` to skip sections that are missing."""
    for dotted, member in DEFAULT_MEMBERS.items():
        *parents, tag = dotted.split(".")
        found = reduce(find, parents, values)
        found.setdefault(tag, MEMBERS_WITH_PATH.get(dotted, member) if "path" in found else member)


def imply_text(file: Settings, above: Settings) -> None:
    """Select the corpus text if the command line sets only data.corpus.path, and the file's corpus has no path.

    Another corpus than the file's takes the default sizes of tests, because the file's fit its own documents.
    """
    chosen = part(part(above, "data"), "corpus")
    name = part(part(file, "data"), "corpus").get("name", DEFAULT_MEMBERS["data.corpus.name"])
    if "path" in chosen and "path" not in getattr(CORPORA.get(str(name)), "__dataclass_fields__", {}):
        chosen.setdefault("name", "text")
    if chosen.get("name", name) != name:
        for size in ("answer_budget", "max_length", "step", "distance_tests", "distance_points"):
            part(file, "probe").pop(size, None)


def inherit(file: Settings, stated: Settings) -> Settings:
    """Read the settings that a run inherits from the model of start.path, without those that its file names.

    `stated` are the settings of the file and the command line together.

    Raises: ConfigError for an architecture other than the model's, CheckpointError for a path without weights.
    """
    model, data, position = part(stated, "model"), part(stated, "data"), part(stated, "position")
    path = part(stated, "start").get("path")
    is_complete = all(name in model for name in ARCHITECTURE) and "tokenizer" in data and position
    if not isinstance(path, str) or is_complete:
        return {}  # nothing to start from, or the config of a run folder
    source = read_source(Path(path), model, own_frequencies="frequency" in position)
    errors = []
    for name, value in model.items():
        if name in ARCHITECTURE and name not in FREE and value != source.model.get(name):
            errors.append(
                f"model.{name}={value}: the weights of start.path={path} have {source.model.get(name)}; omit it"
            )
    if errors:
        raise ConfigError(*errors)
    inherited = {"model": source.model, "position": source.position}
    for name, settings in inherited.items():
        for key in part(file, name):
            settings.pop(key, None)
    if "tokenizer" in data:
        return inherited
    if source.tokenizer is None:
        raise ConfigError(
            f"data.tokenizer: must be set, start.path={path} contains no tokenizer.json with a known end token; set "
            "method: file, path and eos"
        )
    return {**inherited, "data": {"tokenizer": source.tokenizer}}


def derive(settings: Settings, name: str) -> None:
    """Fill in omitted settings that follow from others."""
    section(settings, "run").setdefault("name", name)
    data, model = section(settings, "data"), section(settings, "model")
    tokenizer, distance = section(data, "tokenizer"), section(section(settings, "position"), "distance")
    path = tokenizer.get("path")
    if tokenizer.get("method") == "bpe":
        size = tokenizer.get("vocab_size")
        model.setdefault("vocab_size", size if isinstance(size, int) else Bpe.vocab_size)
    elif "vocab_size" not in model and isinstance(path, str) and is_short(path):  # any other is rejected later
        model["vocab_size"] = load_tokenizer(Path(path)).get_vocab_size()
    window = data.get("window", DataConfig.window)
    if not isinstance(window, int):
        return
    if settings.get("probe", {}) is not None:  # null turns probes off
        section(settings, "probe").setdefault("step", min(128, max(1, window // 16)))
    if distance.get("method") == "string":
        distance.update({**resolve("string", window, window), **distance})
