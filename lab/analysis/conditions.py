"""The conditions that runs fall into, and their names.

The condition of a run is what remains of its settings without seeds, names, folders and how it was computed. A path
that leads to another run is replaced by that run's condition. Numbers in a path are not part of it, unless two runs of
one seed would then be of one condition: the texts of a seed may be in a folder of its number. Seeds are replicates, and
so are the values of the settings that `replicate` names: where bases are continued until they retrieve, start.path.

A run whose loss is masked by evidence is named by what is masked; any other setting by a phrase with its value.
"""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lab.core.types import Row
from lab.core.yaml import flatten, read_yaml
from lab.positions.methods import brief_value

DEFINITIONS = {  # of names, for the line under a picture or a table
    "unmasked": "all targets have a loss",
    "far-masked": "the loss is masked for targets whose evidence is beyond D tokens, the end of weights.keep",
    "near-masked": "the same number of nearer targets is masked instead",
    "matched control": "near-masked, with the same number of digits of answers",
    "random control": "the same number of random targets is masked",
    "base model": "the run that the others continue",
}
PHRASES = {
    "weights": "{}",
    "weights.keep": "keeping {}",
    "data.window": "window of {}",
    "data.mode": "{} documents",
    "data.corpus.section_tokens": "sections of {}",
    "data.corpus.median_tokens": "documents of {}",
    "data.corpus.log_std": "length spread {}",
    "model.theta": "rotary base of {}",
    "train.tokens": "{} tokens",
    "start.path": "from {}",
    "data.corpus.path": "text {}",
}


class Condition(NamedTuple):
    """The condition of a run: its name; the seed of the first run that it goes back to, by which runs are paired.

    `base` is that first run, or the run itself; `is_base` is whether others start from it.
    """

    name: str
    seed: object
    base: str
    is_base: bool


def find_conditions(settings: Mapping[str, Row], replicate: Collection[str] = ()) -> dict[str, Condition]:
    """Find the condition of every run, by its path.

    Example:
        >>> runs = {"a": {"data.window": 96, "run.seed": 0}, "b": {"data.window": 192, "run.seed": 0}}
        >>> runs["c"] = runs["a"] | {"run.seed": 1}
        >>> [condition.name for condition in find_conditions(runs).values()]
        ['window of 96', 'window of 192', 'window of 96']
    """
    names = name_conditions(settings, replicate)
    bases = find_bases(settings)
    others = list_bases(settings, replicate)
    found = {}
    for name, condition in names.items():
        base, seen = name, set()
        while base in bases and base not in seen:  # runs of somebody else may start from one another
            seen.add(base)
            base = bases[base]
        found[name] = Condition(condition, settings[base].get("run.seed"), base, name in others)
    return found


def label_conditions(conditions: Mapping[str, Condition]) -> dict[str, str]:
    """Label every run by the name of its condition with n, the number of its seeds; one run alone by its own name."""
    seeds = defaultdict(list)
    for condition in conditions.values():
        seeds[condition.name].append(str(condition.seed))
    labels = {}
    for run, condition in conditions.items():
        own = seeds[condition.name]
        labels[run] = f"{condition.name}, n = {len(set(own))}" if len(own) > 1 else Path(run).name
    return labels


def read_run_settings(run: Path) -> Row:
    """Read the settings of a run's config.yaml by their dotted names, lists as text.

    Raises: ConfigError.
    """
    settings = flatten(read_yaml(run / "config.yaml"))
    return {key: str(value) if isinstance(value, list) else value for key, value in settings.items()}


def condition_settings(settings: Mapping[str, Row], replicate: Collection[str] = ()) -> dict[str, Row]:
    """Return of each run the settings that its condition has; a start that is one of the runs is its condition.

    Example:
        >>> runs = {"a": {"data.window": 8}, "b": {"start.path": "runs/a", "data.tokenizer.path": "runs/a"}}
        >>> condition_settings(runs)["b"], condition_settings(runs, ["start.path"])["b"]
        ({'start.path': 'base', 'data.tokenizer.path': 'base'}, {})
    """
    bases = find_bases(settings)
    used = {base: settings[base] for base in bases.values()}
    names = {} if len(used) == len(settings) else name_conditions(used, replicate)  # runs may start from one another
    machine = ("run.", "track.", "data.folder", "train.threads", "train.devices", "train.accelerator", "probe.batch")
    out: dict[str, Row] = {}
    for name, row in settings.items():
        base = row.get("start.path")
        condition = base
        if bases.get(name) in names:
            condition = f"base {names[bases[name]]}".removesuffix(" all")
        out[name] = {}
        for key, value in row.items():
            # Other paths lead to the base, too, such as that of its tokenizer.
            leads_to_base = base is not None and value == base
            is_replicate = key in replicate or (leads_to_base and "start.path" in replicate)
            if not (is_replicate or key.startswith(machine) or key.endswith(".seed")):
                out[name][key] = condition if leads_to_base else value
    return out


def without_numbers(settings: Mapping[str, Row], own: Mapping[str, Row]) -> dict[str, Row]:
    """Remove the numbers of paths, unless two runs of one seed would then be of one condition."""
    groups = defaultdict(list)
    out = {}
    for name, row in own.items():
        paths = {key: value for key, value in row.items() if isinstance(value, str) and "/" in value}
        out[name] = {**row, **{key: re.sub(r"\d+", "", path) for key, path in paths.items()}}
        groups[str(out[name])].append(name)
    for names in groups.values():
        if len({str(settings[name].get("run.seed")) for name in names}) < len(names):
            out |= {name: own[name] for name in names}
    return out


def find_differences(settings: Mapping[str, Row]) -> list[str]:
    """List the settings in which conditions differ, by name.

    A setting that a run's section does not have says nothing about that run. The section has another method, whose name
    differs, or was written by a version of the lab without the setting.

    Example:
        >>> one, other = {"skip.method": "pose", "skip.chunks": 2}, {"skip.method": "rpes", "skip.max_gap": 8}
        >>> find_differences({"a": one, "b": other}), find_differences({"a": one, "b": {"data.window": 8}})
        (['skip.method'], ['data.window', 'skip.chunks', 'skip.method'])
    """
    values: dict[str, set[str]] = {key: set() for key in set().union(*settings.values())}
    for row in settings.values():
        sections = {key.rpartition(".")[0] for key in row}
        for key, seen in values.items():
            # A run without the whole section counts: the setting is null there.
            if key in row or key.rpartition(".")[0] not in sections:
                seen.add(str(row.get(key)))
    return sorted(key for key in values if len(values[key]) > 1)


def name_conditions(settings: Mapping[str, Row], replicate: Collection[str] = ()) -> dict[str, str]:
    """Name the condition of every run by the settings that differ; runs that others start from among themselves.

    Example:
        >>> masked = {"start.path": "a", "weights.by": "evidence"}
        >>> name_conditions({"a": {}, "b": {"start.path": "a"}, "c": masked})
        {'a': 'base model', 'b': 'unmasked', 'c': 'far-masked'}
        >>> name_conditions({f"{k}": {"run.seed": k, "data.path": f"text/{k}/a"} for k in range(2)})
        {'0': 'all', '1': 'all'}
    """
    own = condition_settings(settings, replicate)
    bases = list_bases(settings, replicate)
    if len(bases) == len(settings):
        bases = set()
    names = name_rows(without_numbers(settings, {name: row for name, row in own.items() if name not in bases}))
    if bases:
        of_bases = {}
        for name in settings:
            if name in bases:
                of_bases[name] = {key: value for key, value in settings[name].items() if key not in replicate}
        for name, condition in name_conditions(of_bases, replicate).items():
            names[name] = f"base model, {condition}".removesuffix(", all")
    return {name: names[name] for name in settings}  # in the order of the runs


def name_rows(settings: Mapping[str, Row]) -> dict[str, str]:
    """Name rows of settings by those that differ."""
    # A condition of loss weights is one name, in place of the settings that it names.
    settings = {name: replace_weights(row) for name, row in settings.items()}
    keys = find_differences(settings)
    n_all = count_distinct(settings, keys)
    # A setting that only one method has, with one value, follows from the method's name: names are as many without it.
    for key in list(keys):
        values = {str(row.get(key)) for row in settings.values()}
        others = [other for other in keys if other != key]
        if "None" in values and len(values) == 2 and count_distinct(settings, others) == n_all:
            keys = others
    parts: dict[str, list[str]] = {name: [] for name in settings}
    for key in keys:
        paths = [row[key] for row in settings.values() if isinstance(row.get(key), str) and "/" in row[key]]
        folder, slash, _ = os.path.commonprefix(paths).rpartition("/")  # noqa: RUF071  (cut at a slash)
        for name, row in settings.items():
            value = row.get(key)
            if value is not None:
                short = value.removeprefix(folder + slash) if isinstance(value, str) else value
                parts[name].append(name_setting(key, short))
    return {name: ", ".join(words) or "all" for name, words in parts.items()}


def list_bases(settings: Mapping[str, Row], replicate: Collection[str] = ()) -> set[str]:
    """List the runs that others start from, and those like them that start from nothing and were left without any."""
    bases = set(find_bases(settings).values())
    first = {name: row for name, row in settings.items() if row.get("start.path") is None}
    own = without_numbers(first, condition_settings(first, replicate))
    conditions = [own[base] for base in bases if base in own]
    return bases | {name for name, row in own.items() if row in conditions}


def find_bases(settings: Mapping[str, Row]) -> dict[str, str]:
    """Find which of the runs each other one starts from, by the names of their folders.

    Example:
        >>> find_bases({"a": {}, "b": {"start.path": "runs/a"}, "c": {"start.path": "runs/other"}})
        {'b': 'a'}
    """
    runs = {Path(name).name: name for name in settings}
    bases = {}
    for name, row in settings.items():
        base = runs.get(Path(str(row.get("start.path"))).name)
        if base is not None and base != name:
            bases[name] = base
    return bases


def count_distinct(settings: Mapping[str, Row], keys: Sequence[str]) -> int:
    return len({str([row.get(key) for key in keys]) for row in settings.values()})


def replace_weights(settings: Row) -> Row:
    """Replace the type and the control of a run's loss weights by the name of the condition.

    Example:
        >>> replace_weights({"weights.by": "evidence", "weights.control": "kind", "run.seed": 0})
        {'run.seed': 0, 'weights': 'matched control'}
    """
    if "weights.by" not in settings:
        return {**settings, "weights": "unmasked"}
    names = {"none": "far-masked", "near": "near-masked", "kind": "matched control", "random": "random control"}
    control = settings.get("weights.control", "none")
    name = names.get(control, f"{control} control")  # of a removed control
    if not re.fullmatch(r"\[\[0, \d+\]\]", str(settings.get("weights.keep", "[[0, 0]]"))):
        name = name.replace("far-masked", "masked outside")  # of the intervals, which follow where they differ
    others = {key: value for key, value in settings.items() if key not in ("weights.by", "weights.control")}
    return {**others, "weights": name}


def name_setting(key: str, value: object) -> str:
    """Write a setting and its value in words.

    Example:
        >>> name_setting("data.window", 192), name_setting("position.distance.method", "dca")
        ('window of 192', 'distance dca')
        >>> name_setting("train.tokens", 3_000_000), name_setting("optim.min_lr", 0.001)
        ('3,000,000 tokens', 'min lr 0.001')
    """
    text = f"{value:,}" if isinstance(value, int) and value >= 10_000 else brief_value(value)
    # Several settings are joined by a comma and a space.
    text = text.replace(", ", ",")
    if key in PHRASES:
        return PHRASES[key].format(text)
    *sections, last = key.split(".")
    # Of a setting that selects a section's type, the section says what it is.
    name = sections[-1] if last in ("method", "name", "by") and sections else last
    return f"{name.replace('_', ' ')} {text}"


def define_names(names: Iterable[str]) -> list[str]:
    """List the definitions of the words that occur in names of conditions."""
    text = " ".join(names)
    words = [word for word in DEFINITIONS if re.search(rf"(?<![\w-]){word}\b", text)]
    return [f"{word}: {DEFINITIONS[word]}" for word in words]
