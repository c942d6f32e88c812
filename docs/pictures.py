"""Plot the pictures of the pages: `make pictures` for all, python -m docs.pictures NAME ... for some.

`findings` and `lengths` are plotted from records, `string_2k` from a method. `demo` is of runs/cpu_demo_384, `methods`
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

from lab.core.yaml import read_yaml


def read_commands() -> dict[str, list[str]]:
    return read_yaml(Path(__file__).with_suffix(".yaml"))


def run_module(words: Sequence[str]) -> None:
    """Run a module. If it fails, exit with its status; it has printed why."""
    if status := subprocess.run([sys.executable, "-m", *words], check=False).returncode:
        raise SystemExit(status)


def plot_picture(name: str) -> None:
    """Run the commands of a picture and copy it to the pages."""
    with TemporaryDirectory() as out:
        for command in read_commands()[name]:
            run_module(shlex.split(command.format(out=out)))
        # A command may write several pictures; one that has the name of the page's is preferred.
        (picture,) = [*Path(out).glob(f"{name}.png")] or Path(out).glob("*.png")
        image = Image.open(picture).convert("RGB")
        image.thumbnail((1300, image.height), Image.Resampling.LANCZOS)
        # The repository takes no large files: few colours make a smaller file.
        image.quantize(128, dither=Image.Dither.NONE).save(Path("docs") / f"{name}.png", optimize=True)


def main() -> None:
    """Plot the pictures named on the command line, or all."""
    commands = read_commands()
    names = sys.argv[1:] or commands
    for name in names:
        if name not in commands:
            print(f"{name}: no picture of the pages; use one of {', '.join(commands)}", file=sys.stderr)
            raise SystemExit(2)
    for name in names:
        plot_picture(name)


if __name__ == "__main__":
    main()
