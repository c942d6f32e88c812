"""Hand-made run folders, for the tests of reports."""

import json

from lab.core.yaml import format_yaml
from lab.counts import PositionCounts
from lab.runs.folder import RunFolder

PLAIN = {"method": "rope+plain"}


def write_fake(path, *, window=128, seed=0, reaches=(40.0, 90.0), last=100, scores=(1.0, 0.4)):
    """Write a run folder with a probe for each reach."""
    folder = RunFolder(path)
    (path / "eval").mkdir(parents=True)
    settings = {"data": {"window": window}, "run": {"seed": seed, "name": path.name}, "probe": {"threshold": 0.8}}
    (path / "config.yaml").write_text(format_yaml(settings))
    (path / "environment.json").write_text(json.dumps({"commit": "abc", "hardware": {"cpu": "EPYC"}}))
    counts = PositionCounts(window)
    counts.add_segments([window] * 10)
    folder.write_counts(counts)
    rows = []
    for number, reach in enumerate(reaches, start=1):
        about = {"consumed_tokens": number * 1_000_000, **PLAIN}
        rows += [about | one(20, scores[0]), about | one(last, scores[1])]
        ends = {"reach": reach, "reach_low": reach, "reach_high": None, "dips": []}
        ends |= {"first_distance": 20, "last_distance": last, "f_at_reach": 5000 if reach else None}
        lengths = {"effective_length": None, "first_length": 64, "f_at_effective_length": None}
        rows.append(about | ends | lengths | {"held_out_loss": 2.0})
    folder.write_records("probes.jsonl", rows)
    folder.write_cases(len(reaches) * 1_000_000, ())
    return path


def one(distance, score, n=100):
    limits = {"low": max(score - 0.1, 0), "high": min(score + 0.1, 1)}
    return {"distance": distance, "n": n, "found": int(n * score), "score": score, "f": 7, "log_prob": -1.0, **limits}


def evaluate(path, rows, tokens=2_000_000):
    about = {"consumed_tokens": tokens, "metric": "found_by_distance"}
    RunFolder(path / "eval").write_records(f"distance-{tokens:015d}-0a0b0c0d.jsonl", [about | row for row in rows])
