"""The results of docs/demand.md from its records: arms with limits over seeds, and the tests of the predictions.

A run is one observation. Runs of one seed share their base, or initial weights and the order of the text, so that arms
are compared by the differences of pairs: of the share of numbers found and the mean log p over a band of distances, and
of ln reach. Limits are those of the t distribution over seeds, at 95%. If some run of two arms has not begun, limits of
the difference of their shares get two seeds more, at -1 and 1 (lab/runs/arms.py). If all have, they are about runs that
do. p is that of the paired t test, adjusted by Holm over the contrasts of an experiment, for each outcome. The exact p
is that of all flips of signs. Fewer than FEWEST seeds have no p.

Reach is that of lab/probe/reach.py at THRESHOLD. A reach that is not shown, or at the last distance, enters tests at
the first or the last distance; tables count such runs as `at bound`. Their arms have no mean: the least and the most
are printed, with < and +. A run has `begun` if it finds half of the numbers at some distance, and a `dip` if it fails
nearer than its reach. Other outcomes take distances from NEAREST on.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval.engine.seeds import LEVEL, NONE, paired_t
from eval.engine.statistics import holm
from eval.reach import BEGUN, PLAIN
from eval.report.data import outcomes
from experiments.demand.forks import FORK_SEED
from experiments.demand.plans import GAPPED, PLANS, Plan, by_fork
from lab.draw import Rule, below, beside, draw, save
from lab.errors import ConfigError
from lab.looks import CENSORED, RUN, range_of
from lab.probe.reach import reach_of
from lab.runs.arms import FEWEST, mean_with_limits
from lab.runs.tables import unpacked
from lab.yaml import read_yaml

DIFFERENCES = (-1.0, 1.0)  # of two shares
NEAREST = 48  # tokens, a quarter of the window, where the lab's own probe begins; of outcomes other than reach
THRESHOLD = 0.8
WIDTH, ROW = 400, 22  # pixels of a panel, and height of an arm's row
Row = dict[str, Any]


def describe(experiment: str, records: Path, folder: Path | None) -> None:
    """Print the arms and the tests of an experiment, and draw it into a folder if one is given."""
    plan = PLANS[experiment]
    tables = [table for number in plan.tables if (table := records / f"{number}.jsonl.xz").exists()]
    if not tables:
        raise ConfigError(f"N={experiment}: has no records in {records}; train its runs first, without --results")
    tests, reaches = read(tables)
    print(pd.DataFrame(arm_rows(plan, tests, reaches)).to_string(index=False))
    print(f"processors: {'; '.join(sorted(tests.groupby('seed')['processor'].unique().map('or '.join).unique()))}")
    if table := list(contrast_rows(plan, tests, reaches)):
        print(f"\n{pd.DataFrame(table).to_string(index=False)}")
    if folder is not None:
        picture(plan, tests, reaches, folder / f"demand_{experiment}.png")


def read(tables: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the outcome at each distance, and the reach, of every run, by arm, seed and method."""
    tests, reaches = [], []
    with unpacked(tables) as runs:
        for run in runs:
            config = read_yaml(run / "config.yaml")
            about = {"arm": by_fork(config), "seed": config["run"]["seed"] % FORK_SEED}
            environment = json.loads((run / "environment.json").read_text("utf-8"))
            about["processor"] = environment["hardware"]["cpu"]
            texts = [path.read_text("utf-8") for path in sorted(run.glob("eval/*.jsonl"))]
            rows = [json.loads(line) for text in texts for line in text.splitlines()]
            tests += [about | {"method": row["method"]} | found for row in rows if (found := outcome(row))]
            reaches += [about | found for found in reaches_of(rows)]
    return pd.DataFrame(tests), outcomes(pd.DataFrame(reaches))  # a censored reach at its bound


def outcome(row: Row) -> Row | None:
    """Read a row of eval.distance or experiments.demand.gapped: an outcome at a distance; else None."""
    metric = row["metric"]
    if metric == "gapped":
        return {"distance": row["position"], "value": row["log_prob"], "score": math.nan, "method": GAPPED}
    if metric == "found_by_distance" and row["distance"] >= NEAREST:
        return {"distance": row["distance"], "value": row["log_prob"], "score": row["score"]}
    return None


def reaches_of(rows: Sequence[Row]) -> Iterator[Row]:
    """Find the reach under each method, with the distances tested."""
    found = [row for row in rows if row["metric"] == "found_by_distance"]
    for method in dict.fromkeys(row["method"] for row in found):
        own = {row["distance"]: row for row in found if row["method"] == method}
        begun = max(row["score"] for row in own.values()) >= BEGUN
        yield {"method": method, "begun": begun} | reach_of(own, THRESHOLD)


def band(tests: pd.DataFrame, low: int, high: int, outcome: str = "value") -> pd.Series:
    """Average an outcome over the distances of a band, for each run of one method: by arm and seed."""
    inside = tests[(tests["distance"] >= low) & (tests["distance"] <= high)]
    return inside.groupby(["arm", "seed"])[outcome].mean()


def arm_rows(plan: Plan, tests: pd.DataFrame, reaches: pd.DataFrame) -> Iterator[dict]:
    """Describe each arm: reach, its limits and censored seeds; the outcomes by band."""
    mine, asked = (tests[tests["method"] == method] for method in (PLAIN, GAPPED))
    bands = {f"log p {low}-{high}": band(mine, low, high) for low, high in plan.bands}
    bands |= {f"share {low}-{high}": band(mine, low, high, "score") for low, high in plan.bands}
    bands |= {f"{GAPPED} {low}-{high}": band(asked, low, high) for low, high in plan.beside}
    for arm in plan.arms:
        own = reaches[(reaches["arm"] == arm) & (reaches["method"] == PLAIN)]
        n = mine[mine["arm"] == arm]["seed"].nunique()
        if not n:
            continue
        row: Row = {"arm": arm, "n": n}
        row |= dict(zip(("reach", "95%"), reach_text(own), strict=True))
        row |= {end: int((own["outcome"] == name).sum()) for end, name in CENSORED.items()}
        row |= {"dip": int(own["dips"].map(bool).sum())}
        row |= {"begun": int(own["begun"].sum()), "of those": reach_text(own[own["begun"].astype(bool)])[0]}
        yield row | {name: f"{values.xs(arm).mean():.2f}" for name, values in bands.items() if len(values)}


def reach_text(runs: pd.DataFrame) -> tuple[str, str]:
    """Write the geometric mean of the reach of runs, and its limits; the least and the most where one is censored."""
    if runs.empty:
        return "-", "-"
    if (runs["outcome"] != RUN).any():
        return range_of(runs["reach"], runs["outcome"]), "-"
    mean, low, high = (math.exp(x) for x in mean_with_limits(np.log(runs["reach"]).tolist()))
    return f"{mean:.1f}", "-" if math.isnan(low) else f"{low:.0f} to {high:.0f}"


def contrast_rows(plan: Plan, tests: pd.DataFrame, reaches: pd.DataFrame) -> Iterator[dict]:
    """Test each contrast by the paired differences of each outcome, with p adjusted over the contrasts."""
    mine, asked = (tests[tests["method"] == method] for method in (PLAIN, GAPPED))
    own = of_plain(reaches)
    measured: dict[str, Callable[[int, int], pd.Series]] = {"log p": lambda low, high: band(mine, low, high)}
    measured["share"] = lambda low, high: band(mine, low, high, "score")
    measured["ln reach"] = lambda *_: np.log(own["reach"])
    for ends in plan.beside:
        measured["log p at relative positions {} to {}".format(*ends)] = lambda *_, ends=ends: band(asked, *ends)
    for outcome, values in measured.items():
        rows = []
        for prediction, arm, other, low, high in plan.contrasts:
            is_banded = outcome in ("log p", "share")
            name = f"{prediction} {outcome} {low}-{high}" if is_banded else f"{prediction} {outcome}"
            pair = own.loc[own.index.get_level_values("arm").isin((arm, other))]
            ends = None
            if outcome == "share" and not pair["begun"].all():
                ends = DIFFERENCES
            for row in paired(values(low, high), arm, other, name, ends=ends):
                if outcome == "ln reach":
                    row["at bound"] = at_bound(own, (arm, other))
                if outcome == "share":
                    row["begun"] = f"{pair['begun'].sum()} of {len(pair)}"
                rows.append(row)
        adjusted = holm(pd.Series([row["p"] for row in rows], dtype=float))
        for row, p in zip(rows, adjusted, strict=True):
            yield written(row) | {"p, Holm": f"{p:.2g}", "needed": row["needed"] if p > LEVEL else "-"}


def written(row: Row) -> Row:
    """Write the numbers of a test to the digits that are printed."""
    digits = {name: round(row[name], 3) for name in ("difference", "low", "high")}
    return row | digits | {name: f"{row[name]:.2g}" for name in ("p", "exact p")}


def at_bound(own: pd.DataFrame, arms: Sequence[str]) -> int:
    """Count the runs of arms whose reach is below the first distance or at the last."""
    return int((own.loc[[*arms], "outcome"] != RUN).sum())


def of_plain(reaches: pd.DataFrame) -> pd.DataFrame:
    """Keep the reach of every run under plain distance, by arm and seed."""
    return reaches[reaches["method"] == PLAIN].set_index(["arm", "seed"])


def paired(
    values: pd.Series,
    arm: str,
    other: str,
    name: str,
    confidence: float = 0.95,
    ends: tuple[float, float] | None = None,
) -> Iterator[dict]:
    """Compare two arms over the seeds of both; nothing where one of them has no run."""
    arms = values.index.get_level_values("arm")
    if not {arm, other} <= set(arms):
        return
    differences = (values[arm] - values[other]).dropna().tolist()
    yield from mean_difference(differences, name, f"{arm} less {other}", confidence, ends)


def mean_difference(
    differences: Sequence[float],
    name: str,
    arms: str,
    confidence: float = 0.95,
    ends: tuple[float, float] | None = None,
) -> Iterator[dict]:
    """Test whether differences of seeds have a mean of 0; fewer than FEWEST are described, without p."""
    mean, low, high = mean_with_limits(differences, confidence, ends)
    verdict = paired_t(differences, name) if len(differences) >= FEWEST else NONE
    needed = str(verdict.seeds_needed or "-")
    shown = {"n": len(differences), "needed": needed, "difference": mean, "low": low, "high": high, "level": confidence}
    yield {"test": name, "arms": arms, **shown, "p": verdict.p, "exact p": verdict.p_exact}


def picture(plan: Plan, tests: pd.DataFrame, reaches: pd.DataFrame, path: Path) -> None:
    """Draw a panel for each set of arms: the mean outcome by distance, and below it the reach of every run.

    A triangle is a run that failed at the first distance or passed at the last. Limits are in the tables: drawn, those
    of six arms cover each other.
    """
    tests = tests[tests["method"] == PLAIN]
    looks: dict[str, Any] = {"y_limits": (0, 1), "percent": True, "rules": [Rule("y", THRESHOLD)], "width": WIDTH}
    looks |= {"x_title": "distance (tokens)", "y_title": "share of numbers found"}
    tested = [Rule("x", reaches["first_distance"].min()), Rule("x", reaches["last_distance"].max())]
    panels = []
    for arms in plan.panels or (plan.arms,):
        known = [arm for arm in arms if (tests["arm"] == arm).any()]
        if not known:
            continue
        shown = tests[tests["arm"].isin(known)].dropna(subset=["score"])
        means = shown.groupby(["arm", "distance"])["score"].mean().reset_index()
        sizes = shown.groupby("arm")["seed"].nunique()
        names = {arm: f"{arm}, n = {sizes[arm]}" for arm in known}
        means["arm"] = means["arm"].map(names)
        above = draw(means, "distance", "score", "arm", names=[*names.values()], **looks)
        runs = reaches[(reaches["method"] == PLAIN) & reaches["arm"].isin(known)]
        points = pd.concat([runs[runs["arm"] == arm] for arm in known])
        style: dict[str, Any] = {"kind": "point", "outcome": "outcome", "legend": False, "width": WIDTH}
        style |= {
            "height": ROW * len(known),
            "x_title": "reach (tokens)",
            "y_title": "",
            "names": known,
            "rules": tested,
        }
        panels.append(below(above, draw(points, "reach", "arm", "arm", **style)))
    save(beside(*panels), path)
