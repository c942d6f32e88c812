"""Train and evaluate the runs of the miniature in docs/demand.md, or print and plot their results.

    python -m experiments.miniature [--jobs=2]               27 runs, about 70 minutes on two CPU cores
    python -m experiments.miniature --results [-o FOLDER]    tables and a picture of the records

The runs are those of sweeps/NAME_mini.yaml for windows, lengths, arms and base. Each is tested under every distance
method by eval.distance. After Ctrl-C or a crash the same command continues. Runs are in runs/miniature, and a table of
them, which eval.report, eval.reach and eval.compare read, is runs/miniature.jsonl.xz.
"""

import sys
from functools import partial
from pathlib import Path

from experiments.miniature.results import SWEEPS, describe, methods_at
from experiments.runs import make_parser, read_options, run_each, train
from experiments.tables import pack
from lab.sweep.planning import PlannedRun, plan

RECORDS, RUNS = Path("experiments/miniature/records"), Path("runs/miniature")


def main() -> int:
    """Run the command line and return the exit status."""
    options = read_options(make_parser(__doc__), partial(describe, RECORDS))
    runs: dict[Path, PlannedRun] = {}  # sweeps share some
    for name in SWEEPS:
        for run in plan(Path(f"sweeps/{name}_mini.yaml"), {"run.folder": str(RUNS)}):
            runs[run.path] = run
    every = list(runs.values())
    if status := train(every, options.jobs) or run_each("eval.distance", every, options.jobs, test_options):
        return status
    pack(runs, RUNS.with_suffix(".jsonl.xz"))
    return 0


def test_options(run: PlannedRun) -> list[str]:
    """Write the options by which a run is tested under every distance method."""
    names = methods_at(run.experiment.data.window).values()
    return [f"--distance={name.replace('(', ':').removesuffix(')')}" for name in names]


if __name__ == "__main__":
    sys.exit(main())
