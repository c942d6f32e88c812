"""Make one page of any number of runs: what was asked and found, figures, the tables behind them, provenance.

    python -m eval.report RUN [RUN ...] [-o FOLDER|report.html] [--figures FOLDER] [--title=TEXT]

    python -m eval.report runs/mini-* -o report.html
    python -m eval.report runs/cpu_demo --figures figures

The page is one file that needs no network. Figures can be hovered, zoomed (Ctrl and mouse wheel) and dragged; a text
field picks runs; a page that is open reloads when the file is written again. --figures also writes every figure as PNG
and SVG. The page shows what the run folders hold: the probes of training, and results in eval/ at the last probe.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from eval.engine.command import NO_MODEL, Form, Request, run
from eval.engine.rows import Found, file_in
from eval.report.data import Runs, read_runs
from eval.report.figures import figures
from eval.report.looks import IMAGE_WIDTH, Figure
from eval.report.sentences import counted, sentences
from eval.report.tables import tables
from lab.bars import Bar
from lab.command import start
from lab.errors import MissingPackage
from lab.files import write_atomic, writing
from lab.schema import Section

PNG_SCALE = 2.0


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Section):
    """Options of a report."""

    title: str | None = None
    """Heading of the page; left out, the names of the runs."""


def make_report(places: Sequence[Path], options: ReportOptions, output: Path, images: Path | None) -> Found:
    """Read runs, write the page and the images, and return what was written, a row for each run.

    Raises: LabError.
    """
    check_packages()
    runs = read_runs(places)
    drawn = list(figures(runs))
    title = options.title or heading(runs)
    data = render(runs, drawn, title).encode()
    with writing(f"-o {output}", "file"):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(output, data)
    lines = [f"{output}: {counted(len(runs.runs), 'run')}, {counted(len(drawn), 'figure')}, {len(data) / 1e6:.1f} MB"]
    if images is not None:
        write_images(drawn, images)
        lines.append(f"{images}: {len(drawn)} figures as PNG and SVG")
    return Found("\n".join(lines), runs.runs.to_dict("records"), output)


def check_packages() -> None:
    """Check that what draws is installed.

    Raises: MissingPackage.
    """
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingPackage(str(error.name), "eval.report", "plot") from error
    altair.data_transformers.disable_max_rows()


def render(runs: Runs, drawn: Sequence[Figure], title: str) -> str:
    """Fill in the page."""
    import vl_convert
    from jinja2 import Environment

    bundle: Any = vl_convert.javascript_bundle  # its stub leaves out that the argument has a default
    specs: list[Any] = [{"spec": figure.chart.to_dict(), "axis": figure.log} for figure in drawn]
    content = {
        "title": title,
        "sentences": list(sentences(runs)),
        "figures": [figure._asdict() for figure in drawn],
        "tables": list(tables(runs)),
        "notes": runs.notes,
        "provenance": provenance(runs),
        "specs": literal(specs),
        "members": literal(runs.runs[["run", "arm"]].values.tolist()),
        "bundle": script(bundle()),
    }
    stamp = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    template = resources.files("eval.report").joinpath("page.html").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(template).render({**content, "stamp": stamp})


def literal(value: Any) -> Markup:
    """Write a value as JSON that is safe inside a script element."""
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))


def script(text: str) -> Markup:
    """Make code safe inside a script element."""
    return Markup(text.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def heading(runs: Runs) -> str:
    """Name the runs, the first and how many more."""
    names = list(runs.runs["run"])
    return names[0] if len(names) == 1 else f"{len(names)} runs: {names[0]} to {names[-1]}"


def provenance(runs: Runs) -> str:
    """Write commits, hardware and versions, each once."""
    kept = [str(name) for name in runs.environment if str(name).startswith(("commit", "versions.", "hardware."))]
    values = {name.split(".")[-1]: sorted({*map(str, runs.environment[name].dropna())} - {"[]"}) for name in kept}
    parts = [f"{name} {', '.join(each)}" for name, each in values.items() if each]
    return f"Computed with {'; '.join(parts)}." if parts else ""


def write_images(drawn: Sequence[Figure], folder: Path) -> None:
    """Write every figure as PNG and SVG.

    Raises: ConfigError where a file cannot be written.
    """
    import vl_convert

    with writing(f"--figures {folder}", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for figure in Bar(drawn, desc="figures", unit="figure"):
            spec = figure.chart.to_dict()
            if spec.get("width") == "container":
                spec["width"] = IMAGE_WIDTH
            (folder / f"{figure.name}.png").write_bytes(vl_convert.vegalite_to_png(spec, scale=PNG_SCALE))
            (folder / f"{figure.name}.svg").write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""

    def write(request: Request) -> Found:
        images = None if request.named.figures is None else Path(request.named.figures)
        return make_report(request.places, request.options, file_in(request.folder, "report.html"), images)

    missing = "RUN: must come first, the folders of one or more runs; for instance runs/cpu_demo"
    refused = {**NO_MODEL, "--plot": "the page has its figures, --figures writes them as images"}
    form = Form(options=ReportOptions, refused=refused, each=False, file=True, missing=missing, values=("--figures",))
    return run("eval.report", __doc__, form, write, arguments)


if __name__ == "__main__":
    start(main)
