"""Write benchmarks/RESULTS.md from records.

    python -m benchmarks.results FILE.jsonl ... [-o benchmarks/RESULTS.md]

A file's records are grouped by command, commit, hardware and versions.
"""

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.record import Record, read

HEAD = """# Results

Written by `benchmarks.results`; every row is a record of `benchmarks/record.py`.
"""
NO_GPU = """
**No GPU has been measured yet.** Figures from a CPU show that the command works, and nothing about a GPU's speed.
"""


def page(files: Sequence[list[Record]]) -> str:
    """Format all files' records as Markdown."""
    records = [record for file in files for record in file]
    warning = "" if any(record.hardware["gpus"] for record in records) else NO_GPU
    parts = [part for file in files for _, same in groupby(file, key=origin) for part in section(list(same))]
    return "\n".join([HEAD + warning, *parts])


def origin(record: Record) -> tuple[object, ...]:
    """Return the values that the records of a section share."""
    return record.command, record.commit, str(record.hardware), str(record.versions)


def section(records: list[Record]) -> list[str]:
    """Format the records of one run of a benchmark."""
    first = records[0]
    hardware = first.hardware
    devices = ", ".join(hardware["gpus"]) or f"{hardware['cpu']}, {hardware['cores']} cores, no GPU"
    return [
        f"## {first.benchmark} on {devices}",
        "",
        f"`{first.command}`, commit {first.commit[:12]}; "
        + ", ".join(f"{name} {version}" for name, version in first.versions.items()),
        "",
        "| stage | case | status | s | figures |",
        "|---|---|---|---|---|",
        *(row(record) for record in records),
        "",
    ]


def row(record: Record) -> str:
    """Format one record."""
    text = record.reason or ", ".join(f"{key} {shown(value)}" for key, value in record.figures.items())
    cells = record.stage, record.case, record.status, f"{record.seconds:.1f}", text
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


def shown(value: Any) -> str:
    """Format a figure with four digits; a table within a record as its rows.

    Example:
        >>> shown(1234567.0), shown(0.12345), shown([{"operation": "mm", "share": 0.5}])
        ('1,234,567', '0.1234', '[operation mm share 0.5]')
    """
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return " ".join(f"{key} {shown(part)}" for key, part in value.items())
    if isinstance(value, list):
        return f"[{'; '.join(shown(part) for part in value)}]"
    return "-" if value is None else str(value)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("-o", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    options = parser.parse_args()
    options.o.write_text(page([read(path) for path in options.files]), encoding="utf-8")
    print(options.o)


if __name__ == "__main__":
    main()
