"""Draw the pictures of the pages: `make pictures` for all, python -m benchmarks.pictures NAME ... for some.

Those of the miniature are drawn from its records. `demo` is of runs/cpu_demo, `methods` and `heatmap` are of
runs/base_192: runs that are not there are trained first, about 7 minutes each on 2 CPU cores.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.sweep.planning import plan
from lab.sweep.reading import read_sweep

DOCS = Path("docs")
RECORDS = [Path("benchmarks/miniature") / name for name in ("records", "shaped")]
METHODS = "--distance=plain --distance=string:shift=64,window=32 --distance=dca:train_len=128,chunk=96"
SKIPPED = "--shape.strategy.method=skip --shape.strategy.target_len=640 --shape.target.method=bump"
WINDOWS = "192,256,288,320,352,384,448"
COMMANDS = {  # that draw a picture, the last one in the folder {out}
    "demo": ["lab.fit configs/cpu_demo.yaml --resume", f"eval.distance runs/cpu_demo {METHODS} --plot -o {{out}}"],
    "methods": [
        "lab.fit configs/base_192.yaml --resume",
        f"eval.methods runs/base_192 --tests=500 --lengths={WINDOWS} --plot -o {{out}}",
    ],
    "heatmap": [
        "lab.fit configs/base_192.yaml --resume",
        "eval.heatmap runs/base_192 --tests=500 --plot -o {out}",
    ],
    "string_2k": ["eval.positions string --shift=683 --length=2048 --plot -o {out}/x.png"],
    "shape_choose": ["eval.shape configs/shape_demo.yaml --plot {out}/x.png"],
    "shape_skip": [f"eval.shape configs/shape_demo.yaml {SKIPPED} --plot {{out}}/x.png"],
}
MINIATURE = {  # the sweeps whose runs a picture compares, and the figure of their report
    "miniature_lengths": (("lengths",), "crossed"),
    "miniature_methods": (("windows",), "reach_by_method"),
    "miniature_string": (("windows",), "shift_and_window"),
    "miniature_windows": (("windows",), "growth"),
    "miniature_shaping": (("shape", "pack", "skip", "windows"), "growth"),
}
NAMES = (*COMMANDS, *MINIATURE)
UNSHAPED = 192  # window of the runs that the shaped ones are compared with


def records(name: str) -> list[str]:
    """List the records of the runs that a picture of the miniature compares."""
    runs = []
    for sweep in MINIATURE[name][0]:
        planned = plan(read_sweep(Path(f"sweeps/{sweep}_mini.yaml"), seeds=None, seed=None), {})
        has_all = sweep != "windows" or name != "miniature_shaping"
        runs += [run.path.name for run in planned if has_all or run.experiment.data.window == UNSHAPED]
    return sorted(str(path) for folder in RECORDS for path in folder.iterdir() if path.name in runs)


def draw(name: str) -> int:
    """Run the commands of a picture, copy it to the pages, and return the exit status."""
    commands, found = COMMANDS.get(name), "*"
    if commands is None:
        runs, found = shlex.join(records(name)), MINIATURE[name][1]
        commands = [f"eval.report {runs} -o {{out}}/x.html --figures {{out}}"]
    with TemporaryDirectory() as out:
        for command in commands:
            words = shlex.split(command.format(out=out))
            status = subprocess.run([sys.executable, "-m", *words], check=False).returncode
            if status:
                return status
        (picture,) = Path(out).glob(f"{found}.png")
        shutil.copyfile(picture, DOCS / f"{name}.png")
    return 0


def main() -> int:
    """Draw the pictures named on the command line, or all."""
    names = sys.argv[1:] or NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"{unknown[0]}: no picture of the pages; use one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    return next((status for status in map(draw, names) if status), 0)


if __name__ == "__main__":
    raise SystemExit(main())
