"""The numbers that README.md, docs/demand.md and docs/arms.md print, computed anew from the records."""

import collections
import functools
import json
import lzma
import math

import numpy as np
import pytest
from ruamel.yaml import YAML
from scipy import stats

from tests.forked import ROOT

RECORDS = ROOT / "experiments" / "demand" / "records"
README, DEMAND, ARMS = (
    " ".join((ROOT / name).read_text("utf-8").split()) for name in ("README.md", "docs/demand.md", "docs/arms.md")
)


@functools.cache
def read(table):
    """Read the rows and the counts of every run of a table, by its name."""
    runs = collections.defaultdict(lambda: {"rows": [], "text": {}})
    for line in lzma.decompress((RECORDS / f"{table}.jsonl.xz").read_bytes()).splitlines():
        record = json.loads(line)
        run = runs[record["run"]]
        if "row" in record and record["file"].startswith("eval/"):
            run["rows"].append(record["row"])
        elif "arrays" in record:
            run["counts"] = record["arrays"]
        elif "text" in record:
            run["text"][record["file"]] = record["text"]
    return dict(runs)


def arm(table, name):
    """List the runs of an arm of forks by seed."""
    return [runs for run, runs in sorted(read(table).items()) if run.split("-", 2)[2] == name]


def mean(run, metric, value, place, low, high):
    return np.mean([row[value] for row in run["rows"] if row["metric"] == metric and low <= row[place] <= high])


OUTCOMES = {
    "share": ("found_by_distance", "score", "distance", 72, 179),
    "near positions": ("gapped", "log_prob", "position", 72, 192),
    "far positions": ("gapped", "log_prob", "position", 240, 288),
}


def of(table, name, outcome):
    return np.array([mean(run, *OUTCOMES[outcome]) for run in arm(table, name)])


def reach(run):
    """Find where the unimodal fit of the shares from 48 on falls below .8 (the first distance if nowhere above)."""
    known = {row["distance"]: row["score"] for row in run["rows"] if of_plain(row) and row["distance"] >= 48}
    places, shares = np.array([*known]), np.array([*known.values()])
    fits = [np.append(falling(shares[:k][::-1])[::-1], falling(shares[k:])) for k in range(len(shares))]
    fit = min(fits, key=lambda each: np.square(each - shares).sum())
    n = int(np.argmax(fit))
    if fit[n] < 0.8:
        return places[0]
    while n + 1 < len(fit) and fit[n + 1] >= 0.8:
        n += 1
    if n + 1 == len(fit):
        return places[-1]
    return places[n] + (places[n + 1] - places[n]) * (fit[n] - 0.8) / (fit[n] - fit[n + 1])


def of_plain(row):
    return row["metric"] == "found_by_distance" and row["method"] == "rope+plain"


def falling(values):
    """Fit the nearest non-increasing curve, by the min-max formula of means."""
    n, sums = len(values), [0.0, *np.cumsum(values).tolist()]
    means = {(a, b): (sums[b + 1] - sums[a]) / (b + 1 - a) for a in range(n) for b in range(a, n)}
    return [min(max(means[a, b] for b in range(i, n)) for a in range(i + 1)) for i in range(n)]


def limits(values, form=".2f", sign=1):
    """Write a mean and its 95% limits."""
    values = np.asarray(values)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    mean_, low, high = (format(values.mean() + k * half, form).replace("0.", ".", form == ".2f") for k in (0, -1, 1))
    return f"{mean_} ({low} to {high})"


@pytest.mark.parametrize("other", ["all", "near off", "kind off"])
def test_differences_of_s1(other):
    far = {name: of("S1", "far_off", name) for name in OUTCOMES}
    less = {name: of("S1", other.replace(" ", "_"), name) - far[name] for name in OUTCOMES}
    row = f"{limits(less['share'])} |"
    assert f"| {other} | {row}" in DEMAND
    for name in ("near positions", "far positions"):
        assert f"| {limits(less[name], '.1f')} |" in DEMAND


def test_arms_of_s1():
    for name in ("base", "far off", "all", "near off", "kind off"):
        shares, near, far = (of("S1", name.replace(" ", "_"), outcome).mean() for outcome in OUTCOMES)
        begun = sum(
            max(row["score"] for row in run["rows"] if row["metric"] == "found_by_distance") >= 0.5
            for run in arm("S1", name.replace(" ", "_"))
        )
        assert f"| {name} | {shares:.2f}".replace("0.", ".") in DEMAND
        assert f"| {near:.1f} | {far:.1f} | {begun} |" in DEMAND
    logs = np.log([reach(run) for run in arm("S1", "far_off")])
    half = stats.t.ppf(0.975, 4) * logs.std(ddof=1) / math.sqrt(5)
    middle, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    assert f"{middle:.0f} ({low:.0f} to {high:.0f})" in DEMAND
    assert f"{middle:.0f} ({low:.0f} to {high:.0f}, 5 runs)" in README
    assert f"finds {of('S1', 'far_off', 'share').mean():.0%} of the numbers 72 to 179" in README
    assert [reach(run) for run in arm("S1", "all")] == [179] * 5 == [reach(run) for run in arm("S1", "near_off")]


def test_f_is_equal_in_s1_and_demand_is_what_the_page_says():
    for seed in range(5):
        runs = {name: read("S1")[f"S1-{seed}-{name}"] for name in ("all", "far_off", "near_off", "kind_off")}
        f = [run["counts"]["f"] for run in runs.values()]
        assert all(each == f[0] for each in f)
        assert min(f[0]) > 0
        assert len(f[0]) == 384
        far, near = ({name: sum(run["counts"]["g_by_ids"][part]) for name, run in runs.items()} for part in PARTS)
        assert far["far_off"] == 0 < far["all"] == far["near_off"] == far["kind_off"]
        assert near["near_off"] == near["kind_off"] == near["all"] - far["all"]
        assert far["all"] / (far["all"] + near["all"]) == pytest.approx(0.25, abs=0.01)
        machines = {json.loads(run["text"]["environment.json"])["hardware"]["cpu"] for run in runs.values()}
        assert machines == {"AMD EPYC"}


PARTS = slice(65, None), slice(0, 65)


@pytest.mark.parametrize("beyond", [64, 96])
@pytest.mark.parametrize("other", ["kind off", "all"])
def test_differences_of_s3(other, beyond):
    table, names = f"S3_{beyond}", [f"{name}_off_{beyond}" for name in ("far", "kind")]
    name = f"all_{beyond}" if other == "all" else names[1]
    share = of(table, name, "share")
    less = share - of(table, names[0], "share")
    first, second = (np.log([reach(run) for run in arm(table, each)]) for each in (name, names[0]))
    assert f"| {other} | {beyond} | {len(less)} | {limits(less)} | {limits(first - second)} |" in DEMAND
    assert f"| {other} | {beyond} | {len(less)} | {share.mean():.2f} |".replace(" 0.", " .") in DEMAND
    if (other, beyond) == ("kind off", 64):
        assert f"differ by {limits(less)}, {len(less)} seeds" in README


def settings(run):
    return YAML(typ="safe").load(run["text"]["config.yaml"])


def by_demand(run):
    """Name how far evidence may lie: a distance, 0 of a control, or infinity."""
    weights = settings(run)["weights"]
    return math.inf if weights is None else weights["keep"][0][1] * (weights["control"] == "none")


def test_the_trend_over_distances_asked():
    runs = read("1").values()
    for outcome, p in ((lambda run: math.log(reach(run)), ".011 in ln reach"), (log_p, ".0016 in log p at 72 to 179")):
        slopes = []
        for seed in range(5):
            found = {by_demand(run): outcome(run) for run in runs if settings(run)["run"]["seed"] == seed}
            slopes.append(np.polyfit(range(5), [found[d] for d in (48, 64, 96, 128, math.inf)], 1)[0])
        value = stats.ttest_1samp(slopes, 0).pvalue
        assert p.startswith(f"{value:.2g} ".lstrip("0"))
        assert p in DEMAND


def log_p(run):
    rows = [row for row in run["rows"] if of_plain(row)]
    return np.mean([row["log_prob"] for row in rows if 72 <= row["distance"] <= 179])


def test_reach_of_arms_with_one_seed():
    """Reach of five arms of one seed, whole and with demand censored."""
    found = collections.defaultdict(dict)
    for run in read("arms").values():
        whole = settings(run)
        names = (name for name, (section, key, value) in SETTINGS.items() if whole[section].get(key) == value)
        for name in names:
            found[name][by_demand(run)] = reach(run)
    for name in SETTINGS:
        assert f"{name} {found[name][math.inf]:.0f}, {found[name][96]:.0f}" in ARMS


SETTINGS = {  # arms of one seed
    "sandwich norm": ("model", "norm", "sandwich"),
    "norm of q and k": ("model", "qkv", "norm"),
    "gated attention": ("model", "gate", True),
    "2 key heads": ("model", "n_kv_heads", 2),
    "1 key head": ("model", "n_kv_heads", 1),
}
