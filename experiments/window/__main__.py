"""Train and evaluate the experiments of docs/findings.md, or print their results.

    python -m experiments.window [STAGE ...] [--jobs=1]    train what is missing and record it
    python -m experiments.window --short [--jobs=2]        one seed of D: numbers asked as stated, and shuffled
    python -m experiments.window --results                 tables and verdicts of the records

STAGE is one of those in experiments/window/stages.yaml; without any, all run in this order.

Seed after seed, the base model is trained, then its branches. All are tested by eval.distance, and the seed is added to
experiments/window/records. A base model, but for that of scratch, is continued until it has acquired retrieval. Where
it does not, it is recorded without branches, and the next seed is taken. Runs that are recorded are not trained again;
after Ctrl-C or a crash the same command continues. Runs are in runs/window, with --short in runs/window_short, and are
not recorded.

Every run carries the SHA-256 of the predictions of its stage, which were committed before any of them, the commit, the
time of its start and the processor.

Exit status: 0 done; 1 a run failed; 75 stopped, to be continued.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from experiments.window.plans import (
    MOST_BASES,
    STAGES,
    StagePlan,
    evaluation_options,
    is_first,
    plan_base,
    plan_branches,
    plan_continued,
)
from experiments.window.results import collect, has_acquired, open_records, print_results
from lab.analysis.table import ENDING, pack, unpacked
from lab.core.errors import LabError
from lab.core.files import sha256, write_json
from lab.model.devices import cpuinfo
from lab.sweep.nodes import Node, is_trained, run_nodes
from lab.sweep.planning import PlannedRun
from lab.train.environment import commit

RECORDS = Path("experiments/window/records")
RUNS = Path("runs/window")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"one of {', '.join(STAGES)}")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--results", action="store_true")
    options = parser.parse_args()
    # Python 3.11 rejects no argument if it has choices of several.
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"{min(unknown)}: must be one of {', '.join(STAGES)}; name one of them")
    os.environ["OMP_NUM_THREADS"] = "1"  # each run has one thread
    if options.results:
        try:
            print_results(open_records(RECORDS))
        except LabError as error:
            parser.error(str(error))
    elif options.short:
        folder = Path("runs/window_short")
        print(f"D, one seed, in {folder}: a base model, then two orders of asking; 6 minutes on two cores", flush=True)
        # The base model of this seed retrieves after 2M tokens.
        runs = run_seed("D", 31, folder, options.jobs or 2, ("4_log", "4_log_shuffled"))
        print_results(collect(run.path for run in runs))
    else:
        for name in options.stages or STAGES:
            run_stage(name, options.jobs or 1)


def run_stage(name: str, jobs: int) -> None:
    """Train, evaluate and record the seeds of a stage that are not recorded."""
    stage = STAGES[name]
    table = RECORDS / f"{name}{ENDING}"
    n_used = 0
    for seed in stage.seeds:
        if n_used == stage.n_seeds:
            break
        with unpacked([table] if table.exists() else []) as before:
            recorded = {run.name: run for run in before}
            if any(each.startswith(f"{name}-{seed}-") for each in recorded):
                n_used += 1
                continue
            # A base model that never acquired retrieval is recorded, and is not trained again.
            if f"{stage.bases}-{seed}-base_{MOST_BASES}" in recorded:  # without branches: it was not used
                continue
            print(f"{name}, seed {seed}", flush=True)
            runs = run_seed(name, seed, RUNS, jobs)
            n_used += any(run.path.name.startswith(f"{name}-") for run in runs)
            # A run that was recorded before is recorded once, as it is now.
            for run in runs:
                recorded[run.path.name] = run.path
            # A base and its continuations until it retrieves are replicates.
            pack(recorded.values(), table, ["start.path"] if stage.needs_retrieval else [])


def run_seed(name: str, seed: int, folder: Path, jobs: int, chosen: Sequence[str] = ()) -> list[PlannedRun]:
    """Train and evaluate a base model and its branches, all or those chosen; return the runs to record."""
    stage = STAGES[name]
    base = plan_base(name, seed, folder)
    bases: list[PlannedRun] = []  # that this stage records, with its continuations
    for number in range(1, MOST_BASES + 1):
        if number > 1:
            base = plan_continued(name, seed, base, number, folder)
        train_and_test(name, [base], 1)
        if is_first(name):
            bases.append(base)
        if not stage.needs_retrieval or has_acquired(base.path):
            break
        print(f"{name}, seed {seed}: {base.path.name} has not acquired retrieval", flush=True)
    else:
        return bases
    branches = plan_branches(name, seed, base, folder)  # which read the base model's folder
    if chosen:
        branches = [run for run in branches if run.path.name.rpartition("-")[2] in chosen]
    train_and_test(name, branches, jobs)
    return [*bases, *branches]


def train_and_test(name: str, runs: Sequence[PlannedRun], jobs: int) -> None:
    """Train the runs that are not finished, and run their tests that are not, `jobs` runs at once.

    Raises: SystemExit with the status of a run that failed or was stopped.
    """
    training = []
    tests = []
    for run in runs:
        # Signed before training: the predictions are older than the result.
        sign(run, STAGES[name])
        trained = Node(
            name=run.path.name,
            command=run.command(jobs),
            is_finished=partial(is_trained, run.experiment),
            output=run.path / "fit.log",
        )
        training.append(trained)
        test = Node(
            name=f"{run.path.name}, distance",
            command=[sys.executable, "-m", "eval.distance", str(run.path), *evaluation_options(name, run)],
            needs=[trained],
            # Always started: eval.distance itself knows which tests are finished, and runs the others.
            output=run.path / "distance.log",
        )
        tests.append(test)
    if status := run_nodes([*training, *tests], jobs):
        raise SystemExit(status)


def sign(run: PlannedRun, stage: StagePlan) -> None:
    """Write into a run folder, before it is trained, which predictions it tests, and its commit, time and processor."""
    path = run.path / "provenance.json"
    if not path.exists():
        run.path.mkdir(parents=True, exist_ok=True)
        origin = {
            "predictions": str(stage.predictions),
            "sha256": sha256(stage.predictions),
            "commit": commit(),
            "start": datetime.now(UTC).isoformat(timespec="seconds"),
            "processor": describe_processor(),
        }
        write_json(path, origin)


def describe_processor() -> dict[str, str]:
    """Read the processor's model, by which machines of one name differ."""
    known = {}
    for line in cpuinfo().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "cpu family", "model", "stepping"):
            known[name.strip()] = value.strip()
    return known


if __name__ == "__main__":
    main()
