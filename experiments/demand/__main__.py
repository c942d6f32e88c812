"""Train and evaluate an experiment of docs/demand.md, or print its results.

    python -m experiments.demand NAME [--jobs=2] [--seeds=5]       train what is missing and add it to the records
    python -m experiments.demand NAME --results [-o FOLDER]        tables, tests and a picture of what is recorded

NAME is S1 or S3, whose forks are in experiments/demand/forks.py. Seed after seed, every arm is trained and then
evaluated by eval.distance: 64 tests at each of 14 distances, with prompts of the seed's own. Then the seed's records
are added to experiments/demand/records. Runs that are there are not trained again. After Ctrl-C or a crash the same
command continues. Runs are in runs/demand.

Exit status: 0 done; 1 a run failed; 75 stopped, to be continued.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.demand.forks import FORKS, planned_arms, planned_base
from experiments.demand.plans import PLANS
from experiments.demand.results import describe
from experiments.runs import run_each, train
from experiments.tables import pack
from lab.errors import LabError
from lab.runs.tables import unpacked
from lab.sweep.planning import PlannedRun

RECORDS = Path("experiments/demand/records")
DISTANCES = "--distances=24,36,48,60,72,84,96,108,120,132,144,156,168,179"
SETTINGS = {"run.folder": "runs/demand"}


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=PLANS, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--results", action="store_true")
    parser.add_argument("-o", dest="folder", type=Path)
    options = parser.parse_args()
    if options.results:
        try:
            describe(options.experiment, RECORDS, options.folder)
        except LabError as error:
            parser.error(str(error))
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.jobs)))
    for name in PLANS[options.experiment].tables:
        if status := fork(name, options.experiment, options.seeds, options.jobs):
            return status
    return 0


def fork(name: str, experiment: str, seeds: int | None, jobs: int) -> int:
    """Train and evaluate the bases and arms of a table of forks, and add each seed to the table."""
    table = RECORDS / f"{name}.jsonl.xz"
    for seed in range(seeds or FORKS[name].seeds):
        base = planned_base(name, seed, SETTINGS)
        with unpacked([table] if table.exists() else []) as before:
            if base.path.name in {run.name for run in before}:
                continue
        print(f"{name}, seed {seed}: a base and {len(FORKS[name].arms)} arms", flush=True)
        if status := train([base], jobs):
            return status
        runs = [base, *planned_arms(name, seed, base, SETTINGS)]
        if status := train(runs, jobs) or evaluate(runs, experiment, jobs):
            return status
        with unpacked([table] if table.exists() else []) as before:
            pack([*before, *(run.path for run in runs)], table)
    return 0


def evaluate(runs: Sequence[PlannedRun], experiment: str, jobs: int) -> int:
    """Measure reach, and log p at relative positions if the plan compares it."""
    status = run_each("eval.distance", runs, jobs, lambda run: [DISTANCES, "--tests=64", "--batch=64", seed_of(run)])
    if not status and PLANS[experiment].beside:
        status = run_each("experiments.demand.gapped", runs, jobs, lambda run: [seed_of(run)])
    return status


def seed_of(run: PlannedRun) -> str:
    """Write the option by which a run's tests have its own seed."""
    return f"--seed={run.experiment.run.seed}"


if __name__ == "__main__":
    sys.exit(main())
