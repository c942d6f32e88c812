"""Print the records of benchmarks as Markdown tables, those of docs/scale.md among them.

    python -m benchmarks.results FILE.jsonl ...

Records of one command, commit and machine are a section; those with the same figures are a table. Figures that are the
same in the whole table are written above it.
"""

import argparse
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.record import Record, read

NO_GPU = "No GPU: these figures say nothing about the speed of one."


def origin(record: Record) -> tuple[str, ...]:
    """Return the values that the records of a section share."""
    return record.command, record.commit, str(record.hardware), str(record.versions)


def section(records: list[Record]) -> list[str]:
    """Format the records of one run of a benchmark."""
    first = records[0]
    gpus = ", ".join(first.hardware["gpus"])
    device = gpus or f"{first.hardware['cpu']}, {first.hardware['cores']} cores. {NO_GPU}"
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    lines = [f"`{first.command}`, commit {first.commit[:12]}; {versions}; {device}", ""]
    tables: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        tables.setdefault((first.benchmark, *record.figures), []).append(record)
    for same in tables.values():
        lines += table(same)
    return lines


def table(records: list[Record]) -> list[str]:
    """Format records that have the same figures."""
    names, constants = [], []
    for name, value in records[0].figures.items():
        if len(records) > 1 and all(record.figures[name] == value for record in records):
            constants.append(f"{name} {format_figure(value)}")
        else:
            names.append(name)
    names += ["reason"] if any(record.reason for record in records) else []
    lines = [f"{', '.join(constants)}:", ""] if constants else []
    lines += [f"| stage | case | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for record in records:
        cells = [record.stage, record.case]
        for name in names:
            cells.append(str(record.reason) if name == "reason" else format_figure(record.figures[name]))
        lines.append(f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |")
    return [*lines, ""]


def format_figure(value: Any) -> str:
    """Format a figure with four digits.

    Example:
        >>> format_figure(1234567.0), format_figure(0.12345), format_figure(16384)
        ('1,234,567', '0.1234', '16,384')
    """
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value).replace("{", "").replace("}", "").replace("'", "")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    for path in parser.parse_args().files:
        for _, same in groupby(read(path), key=origin):
            print("\n".join(section(list(same))))


if __name__ == "__main__":
    main()
