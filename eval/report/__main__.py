"""Make one page of any number of runs: figures, and the tables behind them.

    probe-lab report RUN [RUN ...] [-o FOLDER|report.html|PICTURE.png]

    probe-lab report runs/mini-* -o report.html
    probe-lab report runs/cpu_demo -o demo.png

The page is one file that needs no network. You can point at a figure, drag it, zoom it with Ctrl and the wheel, and
save it as PNG or SVG from its menu. With a .png or .svg file all figures are one picture. The page shows what the run
folders hold: the probes of training, and the results in eval/ at the last probe. RUN may also be a table of runs
(lab/analysis/table.py).
"""

from collections.abc import Sequence
from functools import partial
from importlib import resources

import pandas as pd
from markupsafe import Markup

from eval.engine.command import OF_RUNS, EvaluationSpec, Request, run_evaluation
from eval.engine.text import RESULTS, Result
from eval.report.figures import FIGURES, Figure
from eval.report.frames import Runs, read_runs
from lab.analysis.conditions import define_names
from lab.analysis.table import is_run, unpacked
from lab.core.chart import altair, concat, save_chart, set_theme, words
from lab.core.command import start
from lab.core.errors import ConfigError, DataError
from lab.core.files import write_atomic, writing
from lab.core.schema import Section
from lab.core.types import Row


class ReportOptions(Section):
    """A report has no options of its own."""


def make_report(request: Request) -> Result:
    """Read runs, and write the page or the picture; the rows are the runs."""
    output = request.folder or RESULTS
    if not output.suffix:
        output /= "report.html"
    with unpacked(request.positional) as places:
        runs = read_runs(places)
    names = list(runs.runs["run"])
    title, counts = names[0], "1 run"
    if len(names) > 1:
        counts = f"{len(names)} runs"
        title = f"{counts}: {names[0]} to {names[-1]}"
    figures = [figure for plot in FIGURES if (figure := plot(runs))]
    counts += f", {len(figures)} figures"
    rows = runs.runs.to_dict("records")
    if output.suffix != ".html":
        if not figures:
            raise DataError("RUN: no run has counts or probes to plot; name runs that have saved a checkpoint")
        charts = [figure.chart.properties(title=figure.title) for figure in figures]
        heading = [title, *define_names(runs.conditions)]
        save_chart(concat(*charts, columns=2, title="\n".join(heading)), output)
        return Result(counts, rows, picture=output)
    # A report is recognised by a line of its script.
    if output.exists() and not (output.is_file() and b"\nconst figures = " in output.read_bytes()):
        raise ConfigError(f"-o={output}: is no report; name another file, or delete this one")
    data = render_page(runs, figures, title).encode()
    with writing(f"-o {output}", "file"):
        write_atomic(output, data)
    return Result(f"{counts}, {len(data) / 1e6:.1f} MB", rows, [output])


def page_spec(figure: Figure) -> Row:
    """Lay out a figure for the page: as wide as it, dragged, and zoomed by Ctrl and the wheel."""
    alt = altair()
    chart = figure.chart
    if not isinstance(chart, alt.FacetChart):
        chart = chart.properties(width="container")
    if figure.zooms:
        zoom = alt.selection_interval(bind="scales", zoom="wheel![event.ctrlKey || event.metaKey]", name="zoom")
        chart = chart.add_params(zoom)
    spec: Row = set_theme(chart).to_dict()
    # The page sets its own ground, light or dark.
    spec["config"].pop("background")
    return spec


def render_page(runs: Runs, figures: Sequence[Figure], title: str) -> str:
    """Fill in the page."""
    import vl_convert
    from jinja2 import Environment

    bundle = vl_convert.javascript_bundle(None)  # type: ignore[arg-type]  # the default
    content = {
        "title": title,
        "names": define_names(runs.conditions),
        "figures": figures,
        "tables": {title: to_html(frame) for title, frame in tables(runs).items() if not frame.empty},
        "specs": [page_spec(figure) for figure in figures],
        "bundle": Markup(bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")),
    }
    template = resources.files("eval.report").joinpath("page.html").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(template).render(content)


def tables(runs: Runs) -> dict[str, pd.DataFrame]:
    """Return the tables of the page by title."""
    names, limits = ["condition", "run", "method"], ["low", "high"]
    return {
        "Runs at their last probe": runs.runs,
        "Reach by position method, last probe": runs.reaches[[*names, "reach", *limits, "g", "n"]],
        "Retrieval accuracy by distance, last probe": runs.distances[[*names, "distance", "score", *limits, "f", "n"]],
        "Every probe": runs.probes,
    }


def to_html(frame: pd.DataFrame) -> Markup:
    """Write a table without its empty columns, numbers in four digits without an exponent."""
    filled = frame.dropna(axis="columns", how="all").infer_objects().rename(columns=words)
    number = lambda x: f"{x:,.0f}" if x % 1 == 0 or abs(x) >= 1000 else f"{x:.4g}"  # noqa: E731
    return Markup(filled.to_html(index=False, na_rep="", float_format=number, border=0))


SPEC = EvaluationSpec(
    name="report",
    description=__doc__,
    options=ReportOptions,
    excluded=OF_RUNS,
    each=False,
    takes=is_run,
    missing="RUN: must come first, the folders of one or more runs; for instance runs/cpu_demo",
)
main = partial(run_evaluation, SPEC, make_report)


if __name__ == "__main__":
    start(main)
