"""The numbers that README.md, docs/demand.md and docs/arms.md print, computed anew from the records."""

import collections
import functools
import itertools
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
    """Find where the falling fit crosses .8, from the last distance on from which tests show it; the first if none.

    A stretch of tests shows it that finds .8, where .75 would find as much in less than .02 / 14 of cases.
    """
    known = sorted((row["distance"], row["found"], row["n"]) for row in run["rows"] if of_plain(row))
    places, found, tests = map(np.array, zip(*known, strict=True))
    for first in reversed(range(len(places))):
        sums, n = found[first:].cumsum(), tests[first:].cumsum()
        if any((sums >= 0.8 * n) & (stats.binom.sf(sums - 1, n, 0.75) <= 0.02 / len(places))):
            break
    else:
        return places[0]
    fit = falling(found[first:] / tests[first:]).round(12)
    (below,) = np.flatnonzero(fit < 0.8)[:1] if fit[-1] < 0.8 else (None,)
    if below is None:
        return places[-1]
    start, end = places[first + below - 1 : first + below + 1]
    return start + (end - start) * (fit[below - 1] - 0.8) / (fit[below - 1] - fit[below])


def of_plain(row):
    return row["metric"] == "found_by_distance" and row["method"] == "rope+plain"


def falling(values):
    """Fit the nearest non-increasing curve, by the min-max formula of means."""
    sums, places = np.append(0.0, np.cumsum(values)), np.arange(len(values))
    means = (sums[1:] - sums[:-1, None]) / np.maximum(places + 1 - places[:, None], 1)  # of places a to b, where a <= b
    most = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]  # over b >= i
    return np.diag(np.minimum.accumulate(most, axis=0))  # over a <= i


def limits(values, form=".2f"):
    """Write a mean and its 95% limits."""
    values = np.asarray(values)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    mean_, low, high = (format(values.mean() + k * half, form).replace("0.", ".", form == ".2f") for k in (0, -1, 1))
    return f"{mean_} ({low} to {high})"


def limits_of_shares(less, *runs):
    """Write the limits of differences of shares; with -1 and 1 beside them if some run never finds half."""
    if all(max(row["score"] for row in run["rows"] if of_plain(row)) >= 0.5 for run in itertools.chain(*runs)):
        return limits(less)
    known = np.append(less, [-1, 1])
    half = stats.t.ppf(0.975, len(known) - 1) * known.std(ddof=1) / math.sqrt(len(known))
    low, high = max(known.mean() - half, -1), min(known.mean() + half, 1)
    return f"{less.mean():.2f} ({low:.2f} to {high:.2f})".replace("0.", ".")


@pytest.mark.parametrize("other", ["all", "near off", "kind off"])
def test_differences_of_s1(other):
    far = {name: of("S1", "far_off", name) for name in OUTCOMES}
    less = {name: of("S1", other.replace(" ", "_"), name) - far[name] for name in OUTCOMES}
    runs = arm("S1", other.replace(" ", "_")), arm("S1", "far_off")
    row = f"{limits_of_shares(less['share'], *runs)} |"
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
    far_off = limits_of_reach(arm("S1", "far_off"))
    assert far_off in DEMAND
    assert f"reach is {far_off.replace(' (', ' tokens (')}" in README
    assert f"find {of('S1', 'far_off', 'share').mean():.0%} of the numbers 72 to 179" in README
    assert sum(reach(run) == 179 for run in arm("S1", "kind_off")) == 4
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
    written = limits_of_shares(less, arm(table, name), arm(table, names[0]))
    assert f"| {other} | {beyond} | {len(less)} | {written} | {limits(first - second)} |" in DEMAND
    assert f"| {other} | {beyond} | {len(less)} | {share.mean():.2f} |".replace(" 0.", " .") in DEMAND
    if (other, beyond) == ("kind off", 64):
        assert f"beyond 64 it is open, {written[:-1]}; p = .063)" in README
    if (other, beyond) == ("kind off", 96):
        assert f"not asked beyond 96 tokens find {limits(less).replace(' (', ' less of the numbers (')} than" in README


def settings(run):
    return YAML(typ="safe").load(run["text"]["config.yaml"])


def by_demand(run):
    """Name how far evidence may lie: a distance, 0 of a control, or infinity."""
    weights = settings(run)["weights"]
    return math.inf if weights is None else weights["keep"][0][1] * (weights["control"] == "none")


def arms_of(name):
    """List pairs of an arm's runs of three seeds: whole, and with demand to 96."""
    kinds = {"pre-norm": None, "window, full": ["window", "full"], "window, no rope": ["window", "nope"]}
    found = collections.defaultdict(dict)
    for run in read("arms").values():
        whole = settings(run)
        layers = whole["model"].get("layers") or {}
        is_plain = all(whole["model"].get(key) == value for key, value in PLAIN.items())
        is_plain &= (whole["model"].get("softmax") or {"method": "plain"})["method"] == "plain"
        is_plain &= whole["data"].get("mode") == "natural" and whole["data"].get("schedule") is None
        if is_plain and layers.get("pattern") == kinds[name]:
            found[whole["run"]["seed"]][by_demand(run)] = run
    return [[pair[demand] for _, pair in sorted(found.items()) if demand in pair] for demand in (math.inf, 96)]


PLAIN = {"norm": "pre", "qkv": "plain", "gate": False, "n_kv_heads": 4}  # settings of a decoder of these arms


@pytest.mark.parametrize("name", ["pre-norm", "window, full", "window, no rope"])
def test_arms_of_three_seeds(name):
    whole, censored = arms_of(name)
    assert len(whole) == len(censored) == 3
    far = [
        np.mean([np.mean([r["log_prob"] for r in run["rows"] if of_plain(r) and r["distance"] >= 132]) for run in runs])
        for runs in (whole, censored)
    ]
    assert f"| {name} | {far[0]:.2f}, {far[1]:.2f} | {spread(whole)}, {spread(censored)} |" in ARMS


def spread(runs):
    """Write the geometric mean of reaches, or of bounds the least and the most."""
    reaches = sorted(map(reach, runs))
    if reaches[0] > 24 and reaches[-1] < 179:
        return f"{np.exp(np.mean(np.log(reaches))):.1f}"
    ends = [f"<{x:.0f}" if x == 24 else f"{x:.0f}+" if x == 179 else f"{x:.0f}" for x in (reaches[0], reaches[-1])]
    return " to ".join(dict.fromkeys(ends))


def adjusted(table, pairs):
    """Write the p of the paired t tests of the share, adjusted by Holm, to two digits."""
    raw = [stats.ttest_rel(of(t, first, "share"), of(t, second, "share")).pvalue for t, first, second in table]
    order, least, found = np.argsort(raw), 0.0, {}
    for place, k in enumerate(order):
        least = max(least, min(1.0, (len(raw) - place) * raw[k]))
        found[pairs[k]] = f"{least:.{1 if least < 0.001 else 2}g}".replace("0.", ".", 1)
    return found


def test_adjusted_p_of_s1_and_s3():
    names = ["all", "near off", "kind off"]
    found = adjusted([("S1", name.replace(" ", "_"), "far_off") for name in names], names)
    for name in names:
        assert f") | {found[name]} |" in line_of(f"| {name} | .")
    pairs = [(name, d) for d in (64, 96) for name in ("kind off", "all")]
    runs = [(f"S3_{d}", f"{name.replace(' ', '_')}_{d}", f"far_off_{d}") for name, d in pairs]
    for (name, d), p in adjusted(runs, pairs).items():
        assert line_of(f"| {name} | {d} | 5 | ", -1).endswith(f"| {p} |")


def line_of(start, place=0):
    """Find the row of a table in docs/demand.md that begins so, of several the first or the last with limits."""
    rows = (ROOT / "docs/demand.md").read_text("utf-8").splitlines()
    return [row for row in rows if row.startswith(start) and "(" in row][place]


@pytest.mark.parametrize("beyond", [64, 96])
def test_all_and_kind_off_are_alike_in_s3(beyond):
    table = f"S3_{beyond}"
    assert limits(of(table, f"all_{beyond}", "share") - of(table, f"kind_off_{beyond}", "share")) in DEMAND
    for name in ("far off", "all", "kind off"):
        runs = arm(table, f"{name.replace(' ', '_')}_{beyond}")
        reaches = sorted(map(reach, runs))
        text = spread(runs)
        if reaches[0] > 24:
            text = limits_of_reach(runs)
        assert (
            f"| {name} | {beyond} | 5 | {of(table, runs_name(name, beyond), 'share').mean():.2f} | {text} |".replace(
                " 0.", " ."
            )
            in DEMAND
        )


def runs_name(name, beyond):
    return f"{name.replace(' ', '_')}_{beyond}"


def limits_of_reach(runs):
    logs = np.log([reach(run) for run in runs])
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    middle, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"
