"""Train and evaluate the experiments of docs/findings.md, or print and plot their results.

    python -m experiments.window [STAGE ...] [--jobs=1] [--seeds=N]    train what is missing and record it
    python -m experiments.window --short [--jobs=2]                    one seed of W, windows 384 and 768
    python -m experiments.window --results [-o FOLDER]                 tables, verdicts and pictures of the records

STAGE is one of S2, S2_crossed, W_1M, W_2M, W_4M and W_larger (experiments/window/plans.py); without any, all run in
this order. Seed after seed, the base model is trained, then its branches. All are tested by eval.distance, and the
seed is added to experiments/window/records. Runs that are recorded are not trained again; after Ctrl-C or a crash the
same command continues. Runs are in runs/window, with --short in runs/window_short, and are not recorded.

Every run carries the SHA-256 of experiments/window/predictions.md, which was committed before any of them.

Exit status: 0 done; 1 a run failed; 75 stopped, to be continued.
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.runs import run_each, train
from experiments.tables import pack
from experiments.window.plans import STAGES, evaluation_options, is_first, plan_base, plan_branches, text_folder
from experiments.window.results import collect, describe, read_records
from experiments.window.texts import write_texts
from lab.files import write_json
from lab.model.devices import cpuinfo
from lab.runs.tables import unpacked
from lab.sweep.planning import PlannedRun

RECORDS = Path("experiments/window/records")
PREDICTIONS = Path("experiments/window/predictions.md")
PROCESSOR = ("model name", "cpu family", "model", "stepping")
SHORT = ("384", "768")  # branches of W_1M


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"one of {', '.join(STAGES)}")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--results", action="store_true")
    parser.add_argument("-o", dest="folder", type=Path)
    options = parser.parse_args()
    if unknown := [name for name in options.stages if name not in STAGES]:
        parser.error(f"STAGE={unknown[0]}: must be one of {', '.join(STAGES)}; name one of them")
    if options.results:
        describe(read_records(RECORDS), options.folder)
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"  # each run has one thread
    if options.short:
        status, runs = run_seed("W_1M", 0, Path("runs/window_short"), options.jobs or 2, SHORT)
        if not status:
            describe(collect(run.path for run in runs))
        return status
    for name in options.stages or STAGES:
        if status := run_stage(name, options.seeds, options.jobs or 1):
            return status
    return 0


def run_stage(name: str, seeds: int | None, jobs: int) -> int:
    """Train, evaluate and record the seeds of a stage that are not recorded."""
    table = RECORDS / f"{name}.jsonl.xz"
    for seed in range(min(seeds or STAGES[name].seeds, STAGES[name].seeds)):
        with unpacked([table] if table.exists() else []) as before:
            if any(run.name.startswith(f"{name}-{seed}-") for run in before):
                continue
            print(f"{name}, seed {seed}", flush=True)
            status, runs = run_seed(name, seed, Path("runs/window"), jobs)
            if status:
                return status
            pack([*before, *(run.path for run in runs)], table)
    return 0


def run_seed(name: str, seed: int, folder: Path, jobs: int, chosen: Sequence[str] = ()) -> tuple[int, list[PlannedRun]]:
    """Train and evaluate a base model and its branches, all or those chosen; return the status and what to record."""
    texts = text_folder(folder, seed)
    if STAGES[name].bases == "S2" and not (texts / "tokenizer.json").exists():
        write_texts(texts, seed)
    base = plan_base(name, seed, folder)
    sign(base)
    if status := train([base], 1):
        return status, []
    branches = plan_branches(name, seed, base, folder)  # which read the base model's folder
    if chosen:
        branches = [run for run in branches if run.path.name.rpartition("-")[2] in chosen]
    for run in branches:
        sign(run)
    runs = [base, *branches] if is_first(name) else branches
    status = train(branches, jobs)
    status = status or run_each("eval.distance", runs, jobs, lambda run: evaluation_options(name, run))
    return status, runs


def sign(run: PlannedRun) -> None:
    """Write into a run folder, before it is trained, the hash of the predictions and the processor that it runs on."""
    path = run.path / "provenance.json"
    if not path.exists():
        run.path.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(PREDICTIONS.read_bytes()).hexdigest()
        write_json(path, {"predictions": str(PREDICTIONS), "sha256": digest, "processor": describe_processor()})


def describe_processor() -> dict[str, str]:
    """Read the processor's model, by which machines of one name differ."""
    pairs = [line.partition(":") for line in cpuinfo().splitlines()]
    known = {name.strip(): value.strip() for name, _, value in pairs}
    return {name: known[name] for name in PROCESSOR if name in known}


if __name__ == "__main__":
    sys.exit(main())
