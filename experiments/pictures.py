"""Plot the pictures of the pages: `make pictures` for all, python -m experiments.pictures NAME ... for some.

`findings` and `prompts` are plotted from records, `string_2k` from a method. `demo` is of runs/cpu_demo_384, `methods`
and `heatmap` are of runs/base_192: runs that are not there are trained first, 7 to 20 minutes each on 2 CPU cores. The
pictures of docs/demand.md are plotted at the commit that it names.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

METHODS = "--distance=plain --distance=string:shift=192,window=64 --distance=dca:train_len=192,chunk=128"
LONGER = "--run.name=cpu_demo_384 --start.path=runs/cpu_demo --data.window=384 --train.tokens=1000000"
COMPARED = "rope,ntk,yarn,rerope,self_extend,dca,string"
WINDOWS = "192,256,288,320,352,384,448"
COMMANDS = {  # that plot a picture, the last one in the folder {out}
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
    "string_2k": ["eval.positions string --shift=683 --length=2048 --plot -o {out}"],
}


def run_module(words: Sequence[str]) -> None:
    """Run a module. If it fails, exit with its status; it has printed why."""
    if status := subprocess.run([sys.executable, "-m", *words], check=False).returncode:
        raise SystemExit(status)


def plot_picture(name: str) -> None:
    """Run the commands of a picture and copy it to the pages."""
    with TemporaryDirectory() as out:
        for command in COMMANDS[name]:
            run_module(shlex.split(command.format(out=out)))
        # A command may write several pictures; one that has the name of the page's is preferred.
        (picture,) = [*Path(out).glob(f"{name}.png")] or Path(out).glob("*.png")
        image = Image.open(picture).convert("RGB")
        image.thumbnail((1300, image.height), Image.Resampling.LANCZOS)
        # The repository takes no large files: few colours make a smaller file.
        image.quantize(128, dither=Image.Dither.NONE).save(Path("docs") / f"{name}.png", optimize=True)


def main() -> None:
    """Plot the pictures named on the command line, or all."""
    names = sys.argv[1:] or COMMANDS
    for name in names:
        if name not in COMMANDS:
            print(f"{name}: no picture of the pages; use one of {', '.join(COMMANDS)}", file=sys.stderr)
            raise SystemExit(2)
    for name in names:
        plot_picture(name)


if __name__ == "__main__":
    main()
