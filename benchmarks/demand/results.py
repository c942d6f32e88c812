"""The results of docs/demand.md from its records: arms with limits over seeds, and the tests of the predictions.

A run is one observation. Runs of one seed share initial weights and the order of the text, so that arms are compared by
the differences of pairs. Limits are those of the t distribution over seeds, at 95%. Two arms are equal in reach where
the 90% limits of the mean difference of ln reach lie within ln 1.1 of 0: two one-sided tests at 5%. A reach that is
below the first distance, or at the last, enters at that bound and is counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from eval.engine.records import unpacked
from lab.draw import Rule, draw, save
from lab.errors import ConfigError
from lab.schema import read_yaml
from lab.train.arms import mean_with_limits

PLAIN = "rope+plain"
MARGIN = math.log(1.1)
FAR, LAST = (48, 64, 96, 128), 179


class Contrast(NamedTuple):
    """A difference between two arms in the mean log p over distances from `low` to `high`, which a prediction names."""

    prediction: str
    arm: str
    other: str
    low: int
    high: int


class Plan(NamedTuple):
    """What an experiment compares: the tables of its runs, its arms, bands of distances, and tests."""

    tables: tuple[int, ...]
    arms: tuple[str, ...]
    bands: tuple[tuple[int, int], ...]
    contrasts: tuple[Contrast, ...]
    equal: tuple[tuple[str, str, str], ...] = ()
    methods: bool = False


CONTROLS = ("far", "near", "random")
HOLE = tuple(f"hole{name}" for name in ("", ", near", ", random"))
DOSES = tuple(f"dose 1/{4**k}" for k in range(1, 5))
PLANS = {
    1: Plan(
        (1,),
        ("untouched", *(f"{name} {D}" for D in FAR for name in CONTROLS)),
        ((24, 48), (49, 64), (65, 96), (97, 128), (129, LAST)),
        (
            *(Contrast("1a", f"far {D}", f"near {D}", D + 1, LAST) for D in FAR),
            *(Contrast("1a", f"far {D}", f"random {D}", D + 1, LAST) for D in FAR),
            *(Contrast("1d", f"far {D}", "untouched", 24, D) for D in FAR),
        ),
        tuple(("1c", f"{name} {D}", "untouched") for D in FAR for name in CONTROLS[1:]),
    ),
    2: Plan(
        (1, 2),
        ("untouched", *HOLE, "far 64"),
        ((24, 60), (72, 120), (132, LAST)),
        (
            Contrast("2a", "hole", "untouched", 72, 120),
            Contrast("2a", "hole", "hole, near", 72, 120),
            Contrast("2b", "hole", "far 64", 72, 120),
            Contrast("-", "hole", "untouched", 132, LAST),
        ),
        (("-", "hole, near", "untouched"), ("-", "hole, random", "untouched")),
    ),
    3: Plan(
        (1, 3),
        ("untouched", *DOSES, "far 64"),
        ((24, 60), (72, 120), (132, LAST)),
        (
            *(Contrast("3a", arm, "far 64", 72, LAST) for arm in ("untouched", *DOSES)),
            *(Contrast("3a", arm, other, 72, LAST) for arm, other in zip(("untouched", *DOSES), DOSES)),
        ),
    ),
    8: Plan(
        (1, 2),
        ("untouched", *(f"far {D}" for D in FAR), "hole"),
        ((24, 60), (72, 120), (132, LAST)),
        (),
        (),
        methods=True,
    ),
}


def describe(experiment: int, records: Path, folder: Path | None) -> None:
    """Print the arms and the tests of an experiment, and draw it into a folder if one is given."""
    plan = PLANS[experiment]
    tables = [table for number in plan.tables if (table := records / f"{number}.jsonl.xz").exists()]
    if not tables:
        raise ConfigError(f"N={experiment}: has no records in {records}; train its runs first, without --results")
    tests, reaches = read(tables)
    methods = sorted(tests["method"].unique(), key=lambda name: name != PLAIN) if plan.methods else [PLAIN]
    rows = [row for method in methods for row in arm_rows(plan, method, tests, reaches)]
    print(pd.DataFrame(rows).to_string(index=False))
    for compared in (contrast_rows(plan, tests), equality_rows(plan, reaches)):
        if table := list(compared):
            print(f"\n{pd.DataFrame(table).to_string(index=False)}")
    if folder is not None:
        picture(plan, tests, folder / f"demand_{experiment}.png")


def read(tables: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the tested distances and the reach of every run, by arm, seed and method."""
    tests, reaches = [], []
    with unpacked(tables) as runs:
        for run in runs:
            config = read_yaml(run / "config.yaml")
            about = {"arm": arm_of(config), "seed": config["run"]["seed"]}
            for row in rows_of(run):
                kept = about | {"method": row["method"]}
                if row["metric"] == "reach":
                    bounded = row["first_distance"] if row["reach"] is None else row["reach"]
                    ends = {"below": row["reach"] is None, "end": row["reach"] == row["last_distance"]}
                    reaches.append(kept | ends | {"reach": float(bounded)})
                else:
                    tests.append(kept | {name: row[name] for name in ("distance", "log_prob", "score")})
    return pd.DataFrame(tests), pd.DataFrame(reaches)


def rows_of(run: Path) -> Iterator[dict]:
    """Read the rows of eval.distance in a run folder."""
    for path in sorted(run.glob("eval/distance-*.jsonl")):
        yield from map(json.loads, path.read_text("utf-8").splitlines())


def arm_of(config: dict) -> str:
    """Name a run's arm by its loss weights.

    Example:
        >>> arm_of({"weights": {"keep": [[0, 64]], "control": "near", "fraction": 1.0}}), arm_of({"weights": None})
        ('near 64', 'untouched')
    """
    weights = config.get("weights")
    if weights is None:
        return "untouched"
    control = weights["control"]
    if len(weights["keep"]) > 1:
        return "hole" if control == "none" else f"hole, {control}"
    if weights["fraction"] < 1:
        return f"dose 1/{round(1 / (1 - weights['fraction']))}"
    return f"{'far' if control == 'none' else control} {weights['keep'][0][1]}"


def band(tests: pd.DataFrame, low: int, high: int) -> pd.Series:
    """Average log p over the distances of a band, for each run of one method: by arm and seed."""
    inside = tests[(tests["distance"] >= low) & (tests["distance"] <= high)]
    return inside.groupby(["arm", "seed"])["log_prob"].mean()


def arm_rows(plan: Plan, method: str, tests: pd.DataFrame, reaches: pd.DataFrame) -> Iterator[dict]:
    """Describe each arm under a method: mean reach, its limits, seeds at the bounds, and log p by band."""
    mine = tests[tests["method"] == method]
    bands = {f"log p {low}-{high}": band(mine, low, high) for low, high in plan.bands}
    for arm in plan.arms:
        own = reaches[(reaches["arm"] == arm) & (reaches["method"] == method)]
        if own.empty:
            continue
        mean, low, high = (math.exp(x) for x in mean_with_limits(np.log(own["reach"]).tolist()))
        about = {"method": method} if plan.methods else {}
        limits = f"{low:.0f} to {high:.0f}"
        row = {"arm": arm, "n": len(own), "reach": f"{mean:.1f}", "95%": limits}
        row |= {"below": int(own["below"].sum()), "end": int(own["end"].sum())}
        yield about | row | {name: f"{values.xs(arm).mean():.2f}" for name, values in bands.items() if len(values)}


def contrast_rows(plan: Plan, tests: pd.DataFrame) -> Iterator[dict]:
    """Test each contrast by the paired differences of log p."""
    mine = tests[tests["method"] == PLAIN]
    for prediction, arm, other, low, high in plan.contrasts:
        values = band(mine, low, high)
        yield from paired(values, arm, other, f"{prediction} log p {low}-{high}")


def equality_rows(plan: Plan, reaches: pd.DataFrame) -> Iterator[dict]:
    """Test whether arms are equal in reach."""
    logs = np.log(reaches[reaches["method"] == PLAIN].set_index(["arm", "seed"])["reach"])
    for prediction, arm, other in plan.equal:
        for row in paired(logs, arm, other, f"{prediction} ln reach", 0.90):
            inside = row["low"] > -MARGIN and row["high"] < MARGIN
            yield row | {"equal": "yes" if inside else "not shown"}


def paired(values: pd.Series, arm: str, other: str, name: str, confidence: float = 0.95) -> Iterator[dict]:
    """Compare two arms over the seeds of both; nothing where one of them has no run."""
    arms = values.index.get_level_values("arm")
    if not {arm, other} <= set(arms):
        return
    differences = (values[arm] - values[other]).dropna().tolist()
    mean, low, high = mean_with_limits(differences, confidence)
    shown = {"difference": round(mean, 3), "low": round(low, 3), "high": round(high, 3)}
    yield {"test": name, "arms": f"{arm} less {other}", "n": len(differences), **shown, "level": confidence}


def picture(plan: Plan, tests: pd.DataFrame, path: Path) -> None:
    """Draw the share found by distance, a line for each arm."""
    mine = tests[(tests["method"] == PLAIN) & tests["arm"].isin(plan.arms)]
    means = mine.groupby(["arm", "distance"], sort=False)["score"].mean().reset_index()
    names = [arm for arm in plan.arms if (means["arm"] == arm).any()]
    titles = {"x_title": "distance of the number (tokens)", "y_title": "share of numbers found, mean over seeds"}
    rules = [Rule("y", 0.8, "reach")]
    chart = draw(means, "distance", "score", "arm", y_limits=(0, 1), percent=True, names=names, rules=rules, **titles)
    save(chart, path)
