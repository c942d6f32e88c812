"""Train and evaluate the experiments of docs/demand.md, or print and plot their results.

    python -m experiments.demand [--jobs=2]               train what is missing and record it, about 3 core-hours
    python -m experiments.demand --results [-o FOLDER]    tables, verdicts and a picture of the records

The conditions are in experiments/demand/plans.py. Seed after seed, the base model and its
branches are trained and then evaluated by eval.distance: 64 tests at each of 14 distances, with prompts of the seed's
own. The seed is added to experiments/demand/records. Runs that are recorded are not trained again. After Ctrl-C or a
crash the same command continues. Runs are in runs/demand.

Exit status: 0 done; 1 a run failed; 75 stopped, to be continued.
"""

import sys
from functools import partial
from pathlib import Path

from experiments.demand.plans import PLANS, plan_base, plan_branches
from experiments.demand.results import describe
from experiments.runs import make_parser, read_options, run_each, train
from experiments.tables import pack
from lab.runs.tables import unpacked
from lab.sweep.planning import PlannedRun

RECORDS, RUNS = Path("experiments/demand/records"), Path("runs/demand")
DISTANCES = "--distances=24,36,48,60,72,84,96,108,120,132,144,156,168,179"


def main() -> int:
    """Run the command line and return the exit status."""
    options = read_options(make_parser(__doc__), partial(describe, RECORDS))
    for name in PLANS:
        if status := run_table(name, options.jobs):
            return status
    return 0


def run_table(name: str, jobs: int) -> int:
    """Train, evaluate and record the seeds of a table that are not recorded."""
    table = RECORDS / f"{name}.jsonl.xz"
    for seed in range(PLANS[name].n_seeds):
        base = plan_base(name, seed, RUNS)
        with unpacked([table] if table.exists() else []) as before:
            if any(run.name == base.path.name for run in before):
                continue
            print(f"{name}, seed {seed}", flush=True)
            if status := train([base], jobs):
                return status
            runs = [base, *plan_branches(name, seed, base, RUNS)]
            if status := train(runs, jobs) or run_each("eval.distance", runs, jobs, test_options):
                return status
            # A seed is recorded as a whole: one that was stopped is continued, and counted once.
            pack([*before, *(run.path for run in runs)], table)
    return 0


def test_options(run: PlannedRun) -> list[str]:
    """Write the options of the tests of a run, with prompts of its own seed."""
    return [DISTANCES, "--tests=64", "--batch=64", f"--seed={run.experiment.run.seed}"]


if __name__ == "__main__":
    sys.exit(main())
