"""Plot the pictures of the pages: `make pictures` for all, python -m experiments.pictures NAME ... for some.

`findings` and `prompts` are plotted from records, `string_2k` from a method. `demo` is of runs/cpu_demo_384, `methods`
and `heatmap` are of runs/base_192: runs that are not there are trained first, 7 to 20 minutes each on 2 CPU cores. The
pictures of docs/demand.md are plotted at the commit that it names.

The last step writes results/contact_sheet.png: all pictures of the pages, and the report of 27 recorded runs.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

DOCS, SHEET = Path("docs"), Path("results/contact_sheet.png")
RECORDS = Path("experiments/miniature/records")
N_COLUMNS, CELL, GAP = 3, 900, 30  # of the sheet; pixels of a column, and between pictures
WIDTH, COLOURS = 1300, 128  # of a picture
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


def run(words: Sequence[str]) -> None:
    """Run a module. If it fails, exit with its status; it has printed why."""
    if status := subprocess.run([sys.executable, "-m", *words], check=False).returncode:
        raise SystemExit(status)


def plot_picture(name: str) -> None:
    """Run the commands of a picture and copy it to the pages."""
    with TemporaryDirectory() as out:
        for command in COMMANDS[name]:
            run(shlex.split(command.format(out=out)))
        # A command may write several pictures; one that has the name of the page's is preferred.
        (picture,) = [*Path(out).glob(f"{name}.png")] or Path(out).glob("*.png")
        image = Image.open(picture).convert("RGB")
        image.thumbnail((WIDTH, image.height), Image.Resampling.LANCZOS)
        # The repository takes no large files: few colours make a smaller file.
        image.quantize(COLOURS, dither=Image.Dither.NONE).save(DOCS / f"{name}.png", optimize=True)


def write_sheet(path: Path) -> None:
    """Write the pictures of the pages and of a report on one sheet."""
    with TemporaryDirectory() as out:
        report = Path(out) / "report.png"
        run(["eval.report", *map(str, sorted(RECORDS.glob("*.xz"))), "-o", str(report)])
        images = []
        for picture in [*sorted(DOCS.glob("*.png")), report]:
            image = Image.open(picture).convert("RGB")
            image.thumbnail((CELL, 4 * CELL), Image.Resampling.LANCZOS)
            images.append(image)
    heights = [0] * N_COLUMNS
    sheet = Image.new("RGB", (N_COLUMNS * CELL, sum(image.height + GAP for image in images)), "white")
    for image in images:
        column = heights.index(min(heights))
        sheet.paste(image, (column * CELL, heights[column]))
        heights[column] += image.height + GAP
    path.parent.mkdir(exist_ok=True)
    sheet.crop((0, 0, sheet.width, max(heights))).save(path)
    print(f"look at {path}")


def main() -> None:
    """Plot the pictures named on the command line, or all."""
    names = sys.argv[1:] or COMMANDS
    for name in names:
        if name not in COMMANDS:
            print(f"{name}: no picture of the pages; use one of {', '.join(COMMANDS)}", file=sys.stderr)
            raise SystemExit(2)
    for name in names:
        plot_picture(name)
    write_sheet(SHEET)


if __name__ == "__main__":
    main()
