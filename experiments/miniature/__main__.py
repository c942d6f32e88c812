"""Run the miniature of arXiv:2410.18745: train its sweeps, evaluate every run under the distance methods, report.

    python -m experiments.miniature [SWEEP ...] [--jobs 2] [--save FOLDER]

SWEEP is windows, lengths, arms or base, of sweeps/SWEEP_mini.yaml; without any, all are run, 27 runs of 3 seeds.
Evaluations (eval.distance): STRING and DCA for every run; for those of windows_mini from 192 tokens on (one of 128 is
reached to its end) every distance method at several settings (Table 1), and at 192 STRING at a grid of shifts and
windows (Figure 7). Reports: a page for each sweep and one of all, and eval.reach over all runs. Runs are in
runs/miniature.

The same command continues after Ctrl-C or a crash. --save writes a table of each sweep's runs, which eval.report,
eval.reach and eval.compare read in place of the run folders.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.tables import pack
from lab.jobs import Job, run_jobs
from lab.sweep.planning import PlannedRun, plan

SWEEPS = ("windows", "lengths", "arms", "base")
FOLDER = Path("runs/miniature")
COMPARED_WINDOW = 192  # whose runs have Figure 7; from which on they have Table 1


def main() -> int:
    """Run all steps and return the exit status of the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="*", type=read_sweep, metavar="SWEEP")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    settings = {"run.folder": str(FOLDER)}
    runs = {}
    for name in options.sweeps or SWEEPS:
        file = f"sweeps/{name}_mini.yaml"
        status = command("lab.sweep", file, f"--run.folder={FOLDER}", f"--jobs={options.jobs}")
        if status:
            return status
        runs[name] = plan(Path(file), settings)
    known = {run.path: run for group in runs.values() for run in group}
    windows = runs.get("windows", [])
    compared = {run.path for run in windows if run.experiment.data.window >= COMPARED_WINDOW}
    status = evaluate(
        [words for path, run in known.items() for words in evaluations(run, path in compared)], options.jobs
    )
    status = status or report(FOLDER.with_name(f"{FOLDER.name}_report"), runs)
    if options.save is not None and not status:
        save(runs, options.save)
    return status


def read_sweep(text: str) -> str:
    """Check the name of a sweep, which `choices` would do wrong if there is none."""
    if text not in SWEEPS:
        raise argparse.ArgumentTypeError(f"no sweep {text!r}; the sweeps are {', '.join(SWEEPS)}")
    return text


def command(module: str, *words: str) -> int:
    """Run a module as a user would, and return its exit status."""
    return subprocess.run([sys.executable, "-m", module, *words], check=False).returncode


def evaluations(run: PlannedRun, is_compared: bool) -> Iterator[list[str]]:
    """List the command lines of eval.distance for one run; those compared get every method."""
    window = run.experiment.data.window
    methods = ["string", "dca"]
    if is_compared:
        methods += table_1(window)
        methods += figure_7(window) if window == COMPARED_WINDOW else []
        for name, more in (("ntk", []), ("yarn", [f"--position.frequency.train_len={2 * window // 3}"])):
            own = [f"--position.frequency.method={name}", "--position.frequency.factor=1.5", *more]
            yield [str(run.path), *own]
    yield [str(run.path), "--plot", *(f"--distance={method}" for method in methods)]


def table_1(window: int) -> list[str]:
    """List the distance methods of Table 1 at settings beside those of eval.probe."""
    half, third = window // 2, window // 3
    return [
        "rerope",
        f"rerope:window={third}",
        f"rerope:window={half}",
        "self_extend",
        f"self_extend:group=2,window={window // 4}",
        f"self_extend:group=4,window={third}",
        f"leaky_rerope:window={third},leak=2.0",
        f"leaky_rerope:window={half},leak=2.0",
        f"dca:train_len={half},chunk={3 * half // 4}",
        f"dca:train_len={third},chunk={window // 4}",
    ]


def figure_7(window: int) -> list[str]:
    """List STRING at a grid of shifts S and windows W."""
    shifts, widths = (window // 4, -(-window // 3), window // 2), (window // 12, window // 8, window // 4)
    return [f"string:shift={shift},window={width}" for shift in shifts for width in widths]


def evaluate(lines: Sequence[Sequence[str]], jobs: int) -> int:
    """Run command lines of eval.distance, some at once, one thread each; stop at the first that fails."""
    os.environ["OMP_NUM_THREADS"] = "1"
    start = [sys.executable, "-m", "eval.distance"]
    named = [Job(" ".join(words), [*start, *words], Path(words[0]) / "distance.log") for words in lines]

    def on_end(job: Job, status: int) -> None:
        print(f"eval.distance {job.name}: {'done' if not status else f'status {status}, see {job.output}'}", flush=True)

    return run_jobs(named, jobs, on_end=on_end)


def report(place: Path, runs: dict[str, list[PlannedRun]]) -> int:
    """Write a page for each sweep and one of all runs, their figures, and the regression of reach."""
    every = list(dict.fromkeys(str(run.path) for group in runs.values() for run in group))
    for name, paths in {
        **{name: [str(run.path) for run in group] for name, group in runs.items()},
        "all": every,
    }.items():
        status = command("eval.report", *paths, "-o", str(place / f"{name}.html"), "--figures", str(place / name))
        if status:
            return status
    return command("eval.reach", *every, "-o", str(place))


def save(runs: dict[str, list[PlannedRun]], target: Path) -> None:
    """Write a table of each sweep's runs; a run of several sweeps belongs to the first."""
    saved: set[Path] = set()
    for name, group in runs.items():
        new = {run.path for run in group} - saved
        saved |= new
        target.mkdir(parents=True, exist_ok=True)
        pack(new, target / f"{name}.jsonl.xz")


if __name__ == "__main__":
    sys.exit(main())
