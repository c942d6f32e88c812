"""Draw the pictures of the pages: `make pictures` for all, python -m experiments.pictures NAME ... for some.

`findings`, `demand` and those of the miniature are drawn from records. `demo` is of runs/cpu_demo_384, `methods` and
`heatmap` are of runs/base_192: runs that are not there are trained first, 7 to 20 minutes each on 2 CPU cores.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from lab.runs.arms import read_settings
from lab.runs.tables import unpacked

DOCS = Path("docs")
WIDTH, COLOURS = 1300, 128  # of a picture
MINIATURE_RECORDS = Path("experiments/miniature/records")
METHODS = "--distance=plain --distance=string:shift=192,window=64 --distance=dca:train_len=192,chunk=128"
LONGER = "--run.name=cpu_demo_384 --start.path=runs/cpu_demo --data.window=384 --train.tokens=1000000"
COMPARED = "rope,ntk,yarn,rerope,self_extend,dca,string"
WINDOWS = "192,256,288,320,352,384,448"
COMMANDS = {  # that draw a picture, the last one in the folder {out}
    "demo": [
        "lab.fit configs/cpu_demo.yaml --resume",
        f"lab.fit configs/cpu_demo.yaml --resume {LONGER}",
        f"eval.distance runs/cpu_demo_384 {METHODS} --plot -o {{out}}",
    ],
    "methods": [
        "lab.fit configs/base_192.yaml --resume",
        f"eval.probe runs/base_192 --distance={COMPARED} --tests=200 --lengths={WINDOWS} --plot -o {{out}}",
    ],
    "heatmap": [
        "lab.fit configs/base_192.yaml --resume",
        "eval.probe runs/base_192 --by=depth --tests=200 --plot -o {out}",
    ],
    "findings": ["experiments.window --results -o {out}"],
    "prompts": ["experiments.window --results -o {out}"],
    "demand": ["experiments.demand S1 --results -o {out}"],
    "string_2k": ["eval.positions string --shift=683 --length=2048 --plot -o {out}"],
}
SHARED = {"data.mode": "natural", "model.theta": 1000}
LONG = {**SHARED, "data.corpus.log_std": 0.8, "data.corpus.section_tokens": 192}
MINIATURE = {  # the figure of a report, and the settings of the records that it compares
    "miniature_lengths": ("growth", {**SHARED, "data.window": 192}),
    "miniature_methods": ("reach_by_method", LONG),
    "miniature_string": ("shift_and_window", LONG),
    "miniature_windows": ("growth", LONG),
}
NAMES = (*COMMANDS, *MINIATURE)


def wanted(name: str, runs: Sequence[Path]) -> list[str]:
    """List the records that a picture of the miniature compares."""
    settings = MINIATURE[name][1].items()
    return [str(run) for run in runs if settings <= read_settings(run).items()]


def draw(name: str) -> int:
    """Run the commands of a picture, copy it to the pages, and return the exit status."""
    tables = sorted(MINIATURE_RECORDS.iterdir()) if name in MINIATURE else []
    found = MINIATURE[name][0] if name in MINIATURE else "*"
    with TemporaryDirectory() as out, unpacked(tables) as runs:
        commands = COMMANDS.get(name) or [
            f"eval.report {shlex.join(wanted(name, runs))} -o {{out}}/x.html --figures {{out}}"
        ]
        for command in commands:
            words = shlex.split(command.format(out=out))
            status = subprocess.run([sys.executable, "-m", *words], check=False).returncode
            if status:
                return status
        (picture,) = [*Path(out).glob(f"{name}.png")] or Path(out).glob(f"{found}.png")
        image = Image.open(picture).convert("RGB")
        image.thumbnail((WIDTH, image.height), Image.Resampling.LANCZOS)
        image.quantize(COLOURS, dither=Image.Dither.NONE).save(DOCS / f"{name}.png", optimize=True)
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
