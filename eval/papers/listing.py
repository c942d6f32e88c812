"""The list of all tables: their state on this machine, and docs/papers.md and docs/data.md, written from the files."""

from __future__ import annotations

from pathlib import Path

from eval.engine.table import to_text
from eval.papers.cost import gpu_hours
from eval.papers.expanding import Sized
from eval.papers.running import missing
from eval.papers.table import HOME, PAPERS, names, needs, read_table
from lab.files import write_atomic

RUNS, RESULT = Path("runs/papers"), "table.json"
DOCS = HOME.parents[1] / "docs"
MARK = "<!-- Everything below is written by python -m eval.papers --write -->\n"
PAGES = ("papers.md", "data.md")


def own_folder(name: str, *, mini: bool) -> Path:
    """Name the folder of a table's results."""
    return RUNS / f"{name.replace('/', '-')}{'-mini' * mini}"


def state(name: str) -> str:
    """Return the largest size at which a table has been run here."""
    done = [size for size in ("full", "mini") if (own_folder(name, mini=size == "mini") / RESULT).exists()]
    return done[0] if done else "not run"


def listing() -> str:
    """List every table with its state and what it needs that is not here."""
    rows = []
    for name in names():
        sized = Sized(name, read_table(name), mini=False)
        lacks = ", ".join(line.partition(":")[0] for line in missing(sized))
        rows.append(
            {"table": name, "state": state(name), "what": sized.table.title, "missing here": lacks or "nothing"}
        )
    return to_text(rows)


def write_docs() -> str:
    """Write the pages below their marks, and return their names."""
    for page in PAGES:
        head = (DOCS / page).read_text(encoding="utf-8").partition(MARK)[0]
        write_atomic(DOCS / page, (head + MARK + below(page)).encode())
    return "written: " + ", ".join(str(DOCS / page) for page in PAGES)


def below(page: str) -> str:
    """Write what stands below a page's mark."""
    return papers() if page == "papers.md" else data()


def papers() -> str:
    """Write a section for each paper: its tables, and what has no command."""
    parts = []
    for paper, (arxiv, title) in PAPERS.items():
        lines = [line(name) for name in names() if name.startswith(f"{paper}/")]
        left_out = {name: why for name, why in needs().left_out.items() if name.startswith(f"{paper}/")}
        head = ["| table | what | needs, beside synthetic data | GPU-hours: training, evaluation | GPUs | mini |"]
        rows = [*head, "|---|---|---|---|---|---|", *lines, "", "| without a command | why |", "|---|---|"]
        parts.append(
            "\n".join([f"\n## {title} (arXiv:{arxiv})\n", *rows, *(f"| {n} | {w} |" for n, w in left_out.items())])
        )
    return "\n".join(parts) + "\n"


def line(name: str) -> str:
    """Write a table's line."""
    sized = Sized(name, read_table(name), mini=False)
    trained, evaluated = gpu_hours(sized)
    table = sized.table
    seconds = "not run" if table.mini.seconds is None else f"{table.mini.seconds:.0f} s"
    needed = ", ".join(sized.needed) or "nothing"
    hours = f"{amount(trained)}, {amount(evaluated)}"
    return f"| {name} | {table.title} | {needed} | {hours} | {table.gpus} | {seconds} |"


def amount(hours: float) -> str:
    """Write GPU-hours.

    Example:
        >>> amount(0), amount(0.2), amount(10752.4)
        ('-', '< 1', '10,752')
    """
    return "-" if not hours else "< 1" if hours < 1 else f"{hours:,.0f}"


def data() -> str:
    """Write the tables of data sets and models."""
    fields = ("source", "licence", "size", "fields", "read_by")
    rows = ["| name | from | licence | size | fields | read by |", "|---|---|---|---|---|---|"]
    for name, need in needs().data.items():
        where = "" if need.path is None else f" (`{need.path}`)"
        rows.append(f"| {name}{where} | " + " | ".join(getattr(need, field) for field in fields) + " |")
    rows += ["", "| model | path | from |", "|---|---|---|"]
    rows += [f"| {name} | `{need.path}` | {need.source} |" for name, need in needs().models.items()]
    return "\n".join(rows) + "\n"
