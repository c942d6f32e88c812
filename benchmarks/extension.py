"""Every way of extending base_192 to twice its window, at equal tokens: one table.

    python -m benchmarks.extension [masks | positions | pi,anchor,...] [--seeds 2] [--runs runs] [-o FILE] [--json FILE]

Trains configs/extend_*.yaml from runs/base_192 (configs/base_192.yaml) with each seed, skips finished runs, and
prints for each: f at half and three quarters of the longest distance as shares of f(0), and the supervised f at three
quarters likewise, counted in the extension alone; held-out loss of the same 384-token documents for all; effective
length of every seed and the share of tests passed at 384 and 576 tokens; seconds a step. `masks`, what is taken by
default, is every mask, skip and shape; `positions` every position method.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import record
from eval.probe import main as probe
from lab.config import load_experiment
from lab.loading import open_model
from lab.model.attention.segments import Segments
from lab.probe.limits import shown_length
from lab.probe.measuring import HeldOutLoss

BASE = Path("runs/base_192")
COMMON = Path("configs/extend_full.yaml")  # whose held-out documents all are scored on
LOSS_TOKENS = 36_864
POSITIONS = ["full", "pi", "ntk_by_parts", "yarn", "abf", "entropy_abf"]
MASKS = ["full", "concatenated", "document", "document_running", "anchor", "anchor_chunks"]
SKIPS = ["pose", "rpes", "longrecipe"]
SHAPES = ["shape_skip", "shape_weights", "shape_exact"]
GROUPS = {"masks": [*MASKS, *SKIPS, *SHAPES], "positions": POSITIONS}
HEADS = ("method", "f(L/2)/f(0)", "f(3L/4)/f(0)", "supervised at 3L/4", "loss", "effective length", "passed at 384")
HEADS += ("at 576", "s/step")


def records(run: Path, name: str) -> list[dict[str, Any]]:
    """Read a .jsonl file of a run."""
    return [json.loads(line) for line in (run / name).read_text(encoding="utf-8").splitlines()]


def train(config: str, seed: int, runs: Path) -> Path:
    """Train one config with one seed, or go on with it."""
    run = runs / f"extend_{config}-seed{seed}"
    words = [f"configs/extend_{config}.yaml", f"--run.seed={seed}", f"--run.name={run.name}", f"--run.folder={runs}"]
    subprocess.run([sys.executable, "-m", "lab.fit", *words, "--resume"], check=True, stdout=subprocess.DEVNULL)
    return run


def figures(run: Path, probed: Path | None = None) -> dict[str, float]:
    """Read what the table shows of one run, from its own last probe or one in another folder."""
    probes = records(probed or run, "probes.jsonl")
    summary = [p for p in probes if "effective_length" in p][-1]
    last = [p for p in probes if "length" in p and p.get("consumed_tokens") == summary.get("consumed_tokens")]
    accuracy = {p["length"]: p["accuracy"] for p in last}
    counts = np.load(run / "counts.npz")
    frequency, supervised = counts["f"], supervised_of(counts)
    metrics = records(run, "metrics.jsonl")
    found = {
        "half": frequency[len(frequency) // 2] / frequency[0],
        "three_quarters": frequency[3 * len(frequency) // 4] / frequency[0],
        "supervised": supervised[3 * len(supervised) // 4] / supervised[0],
        "loss": common_loss(run),
        "effective_length": summary["effective_length"] or 0,
        "first_length": min(accuracy),
        "at_384": accuracy[384],
        "at_576": accuracy[576],
        "step_s": metrics[-1]["consumed_tokens"]
        / metrics[-1]["step"]
        / statistics.median(m["tokens_per_s"] for m in metrics),
    }
    return {name: float(value) for name, value in found.items()}


def supervised_of(counts: Any) -> Any:
    """Read the supervised f of a counts.npz; not a number in those that were made before targets were counted."""
    return counts["supervised_f"] if "supervised_f" in counts else np.full(len(counts["f"]), np.nan)


def common_loss(run: Path) -> float:
    """Score a run on the documents that all are scored on, in float32."""
    data = load_experiment(COMMON).data
    loss = HeldOutLoss(data, tokens=LOSS_TOKENS, pack_tokens=4 * data.window, rank=0, world_size=1, device="cpu")
    decoder = open_model(run).decoder

    def score(tokens: Tensor, targets: Tensor, segments: Segments) -> Tensor:
        with torch.no_grad():
            return decoder(tokens, segments=segments, targets=targets, summed=False)

    total, scored = loss.sums(score).sum(0).tolist()
    return total / scored


def row(name: str, runs: list[dict[str, float]]) -> str:
    """Format one method: means over seeds, effective lengths one by one."""
    mean = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
    lengths = ", ".join(shown_length(run["effective_length"], int(run["first_length"]), ".0f") for run in runs)
    return (
        f"| {name} | {mean['half']:.3f} | {mean['three_quarters']:.3f} | {mean['supervised']:.3f} | "
        f"{mean['loss']:.3f} | {lengths} | "
        f"{mean['at_384']:.2f} | {mean['at_576']:.2f} | {mean['step_s']:.3f} |"
    )


def before() -> str:
    """Probe the base itself at the same lengths."""
    output = BASE / "eval" / "before-extension"
    probe([str(BASE), "--tests=100", "--step=64", "--max_length=704", "-o", str(output)])
    return row("base_192, before", [figures(BASE, output)])


def main() -> None:
    """Train what is missing and print the table."""
    parser = record.parser_of(__doc__)
    parser.add_argument("configs", nargs="?", default="masks")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("-o", type=Path)
    options = parser.parse_args()
    start, log = time.monotonic(), record.Log("extension", options.json)
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}", before()]
    print(*lines, sep="\n", flush=True)
    for config in GROUPS.get(options.configs) or options.configs.split(","):
        runs = [figures(train(config, seed, options.runs)) for seed in range(options.seeds)]
        lines.append(row(config, runs))
        print(lines[-1], flush=True)
        for seed, found in enumerate(runs):
            log.add(config, f"seed {seed}", found)
    print(f"{options.seeds} seeds in {(time.monotonic() - start) / 60:.1f} minutes")
    if options.o:
        options.o.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
