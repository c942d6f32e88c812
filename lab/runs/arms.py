"""Compare settings of runs: the arms that several runs fall into.

Runs of one arm differ in nothing but their seed, their name and how they were computed. A number of an arm is the mean
over its seeds, with 95% limits of the t distribution,

    mean +- t_(n-1, 0.975) s / sqrt(n),     s the standard deviation of the n seeds

One seed has no limits, nor have seeds whose numbers are all the same. Shares get two more numbers, the ends of their
range (Agresti, Coull 1998 do so for counts). Seeds of which some have acquired retrieval and some have not are alike by
chance: without the two, t limits of five seeds that happen to agree are too narrow. They contain the mean in 70 to 80%
of cases. With them it is 90% and more at 5 seeds, and at 3 (tests/eval/test_coverage.py). Fewer than FEWEST seeds are
described, and not judged. A reach below the first distance that was tested, or at the last, is censored: it is known to
be less, or at least as much. Seeds of which one is censored have no mean.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.core.types import CONFIDENCE, Row
from lab.core.yaml import flatten, read_yaml
from lab.runs.conditions import name_setting, name_weights

FEWEST_ARMS = 4  # of which a setting may be common
FEWEST = 4  # seeds, or bases, that a verdict takes
SHARES = (0.0, 1.0)
NOT_OF_THE_ARM = (
    "run.",
    "track.",
    "data.corpus.seed",
    "train.threads",
    "train.devices",
    "train.accelerator",
    "probe.batch",
)
ONLY = "all"  # name of an arm without others
BASE = "base model"  # name of runs that others start from


def read_settings(run: Path) -> Row:
    """Read the settings of a run's config.yaml by their dotted names, lists as text.

    Raises: ConfigError.
    """
    settings = flatten(read_yaml(run / "config.yaml"))
    return {key: str(value) if isinstance(value, list) else value for key, value in settings.items()}


def find_differences(settings: Mapping[str, Row]) -> list[str]:
    """List the settings in which arms differ, by name.

    A setting that a run's section does not have says nothing about that run. The section has another method, whose name
    differs, or was written by a version of the lab without the setting.

    Example:
        >>> one, other = {"skip.method": "pose", "skip.chunks": 2}, {"skip.method": "rpes", "skip.max_gap": 8}
        >>> find_differences({"a": one, "b": other}), find_differences({"a": one, "b": {"data.window": 8}})
        (['skip.method'], ['data.window', 'skip.chunks', 'skip.method'])
    """
    settings = with_bases(settings)
    values: dict[str, set[str]] = {}
    for row in settings.values():
        for key in row:
            if not key.startswith(NOT_OF_THE_ARM):
                values[key] = set()
    for row in settings.values():
        sections = {key.rpartition(".")[0] for key in row}
        for key, seen in values.items():
            # A run without the whole section counts: the setting is null there.
            if key in row or key.rpartition(".")[0] not in sections:
                seen.add(str(row.get(key)))
    return sorted(key for key in values if len(values[key]) > 1)


def name_arms(settings: Mapping[str, Row]) -> dict[str, str]:
    """Name the arm of every run by the settings that differ between arms; all in one arm have the name of all runs.

    Runs that others start from are named among themselves.

    Example:
        >>> name_arms({"a": {"data.window": 96, "run.seed": 0}, "b": {"data.window": 192, "run.seed": 0}})
        {'a': 'window of 96', 'b': 'window of 192'}
        >>> masked = {"start.path": "a", "weights.by": "evidence"}
        >>> name_arms({"a": {}, "b": {"start.path": "a"}, "c": masked})
        {'a': 'base model', 'b': 'unmasked', 'c': 'far-masked'}
    """
    bases = {base: settings[base] for base in find_bases(settings).values()}
    if bases and len(bases) < len(settings):
        names = name_arms({name: row for name, row in with_bases(settings).items() if name not in bases})
        for name, arm in name_arms(bases).items():
            names[name] = f"{BASE}, {arm}".removesuffix(f", {ONLY}")
        return {name: names[name] for name in settings}  # in the order of the runs
    # A condition of loss weights is one name, in place of the settings that it names.
    settings = {name: name_weights(row) for name, row in settings.items()}
    keys = find_differences(settings)
    n_all = count_arms(settings, keys)
    # A setting that only one method has, with one value, follows from the method's name: the arms are the same without.
    for key in list(keys):
        values = {str(row.get(key)) for row in settings.values()}
        others = [other for other in keys if other != key]
        if "None" in values and len(values) == 2 and count_arms(settings, others) == n_all:
            keys = others
    names = {}
    for name, row in settings.items():
        parts = [name_setting(key, row[key]) for key in keys if row.get(key) is not None]
        names[name] = ", ".join(parts) or ONLY
    return names


def without_common(arms: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Shorten the names of many arms by the settings that more than half of them have, and return these as well.

    Example:
        >>> without_common({"a": "x=1, y=1", "b": "x=2, y=1", "c": "x=3, y=1", "d": "x=1, y=2"})
        ({'a': 'x=1', 'b': 'x=2', 'c': 'x=3', 'd': 'x=1, y=2'}, 'y=1')
    """
    names = {*arms.values()}
    times: Counter[str] = Counter()
    for name in names:
        times.update(name.split(", "))
    common = [part for part, n in times.items() if len(names) >= FEWEST_ARMS and n > len(names) / 2]
    short = {}
    for run, name in arms.items():
        parts = [part for part in name.split(", ") if part not in common]
        short[run] = ", ".join(parts) or "common settings"
    return short, ", ".join(sorted(common))


def with_bases(settings: Mapping[str, Row]) -> Mapping[str, Row]:
    """Replace the path of a start that is one of the runs by the arm of that run."""
    bases = find_bases(settings)
    used = {base: settings[base] for base in bases.values()}
    if len(used) == len(settings):  # runs that start from one another
        return settings
    # Each seed has a base of its own. By their paths, every seed would be an arm.
    arms = name_arms(used)
    replaced = dict(settings)
    for name, base in bases.items():
        replaced[name] = settings[name] | {"start.path": f"base {arms[base]}".removesuffix(f" {ONLY}")}
    return replaced


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


def count_arms(settings: Mapping[str, Row], keys: Sequence[str]) -> int:
    arms = set()
    for row in settings.values():
        arms.add(str([row.get(key) for key in keys]))
    return len(arms)


def classify_reach(reach: float | None, first: float | None, last: float | None) -> str | None:
    """Say whether a reach is known to lie `below` the first distance tested, or at the `end` or beyond.

    Example:
        >>> classify_reach(None, 24, 179), classify_reach(179.0, 24, 179), classify_reach(90.5, 24, 179)
        ('below', 'end', None)
    """
    # A number that is missing is None in a record, and nan in a table.
    if reach is None or math.isnan(reach):
        return None if first is None or math.isnan(first) else "below"
    return "end" if last is not None and reach >= last else None


def mean_with_limits(
    values: Sequence[float], confidence: float = CONFIDENCE, ends: tuple[float, float] | None = None
) -> tuple[float, float, float]:
    """Return the mean over seeds and its limits, nan if there are none; those of bounded values know their `ends`.

    Example:
        >>> [round(x, 3) for x in mean_with_limits([1.0, 2.0, 3.0])], mean_with_limits([2.0])
        ([2.0, -0.484, 4.484], (2.0, nan, nan))
        >>> [round(x, 3) for x in mean_with_limits([1.0] * 5, ends=SHARES)]
        [1.0, 0.508, 1.0]
    """
    from scipy import stats

    mean = statistics.fmean(values)
    # The two numbers that shares get, as the head of this file says: they widen the limits and leave the mean.
    sample = [*values, *(ends or ())]
    if len(values) < 2 or len(set(sample)) == 1:
        return mean, math.nan, math.nan
    limits = stats.t.interval(confidence, len(sample) - 1, loc=statistics.fmean(sample), scale=stats.sem(sample))
    low, high = float(limits[0]), float(limits[1])
    if ends is not None:
        low, high = max(low, ends[0]), min(high, ends[1])
    return mean, low, high
