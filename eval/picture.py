"""Draw one picture of a run: position frequency, loss, and accuracy by length during training; or of several runs.

    python -m eval.picture RUN [RUN ...] [-o FOLDER|PICTURE.png]

Several runs are drawn as in lab/train/arms_picture.py, to runs.png unless -o names another file or a folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.engine.command import NO_MODEL, Form, Request, run
from eval.engine.rows import Found, file_in
from lab.command import start
from lab.schema import Section
from lab.train.arms_picture import draw_arms
from lab.train.picture import draw_run


@dataclass(frozen=True, kw_only=True)
class PictureOptions(Section):
    """This command has no options of its own."""


def draw(request: Request) -> Found:
    """Draw one run or several.

    Raises: LabError.
    """
    runs = request.places
    if len(runs) == 1:
        picture = draw_run(runs[0], file_in(request.folder, "picture.png", runs[0]))
    else:
        picture = draw_arms(runs, file_in(request.folder, "runs.png"))
    return Found("", [{"run": str(place)} for place in runs], picture=picture)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    missing = "RUN: must come first, the folders of one or more runs; for instance runs/cpu_demo"
    refused = {**NO_MODEL, "--plot": "drawing is all that this command does"}
    form = Form(options=PictureOptions, refused=refused, each=False, file=True, missing=missing)
    return run("eval.picture", __doc__, form, draw, arguments)


if __name__ == "__main__":
    start(main)
