"""Texts to measure a model on or to hide a test in, which are read whole."""

import io
import json
import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from lab.command import show
from lab.data import text_files
from lab.errors import DataError
from lab.launch import read_launch

ESSAYS = "https://github.com/HKUNLP/STRING/raw/main/niah/data/PaulGrahamEssays.json"  # of arXiv:2410.18745
OBJECTS = tuple(f".json{suffix}" for suffix in ("", *text_files.COMPRESSIONS))  # one row each


def read_texts(path: Path, field: str) -> list[str]:
    """Read the texts of a file, of a folder's files, or of those that match a pattern.

    A text is a .txt, .md or .py file, the field `text` of a .json object, or that of each line of a .jsonl file, all of
    them also compressed. Other files of a folder are counted in a line.

    Raises: DataError, which names the setting that the path comes from.
    """
    types = f"give a .txt, .md, .py, .json or .jsonl file with `text`, such as by curl -LO {ESSAYS}"
    files, skipped = [path], Counter[str]()
    if not path.is_file():
        files, skipped = text_files.find_files(path, (*text_files.PLAIN, *text_files.LINES, *OBJECTS))
    if not files:
        rule = f"no such file, but {text_files.describe(skipped)}" if skipped else "no such file"
        raise DataError(f"{field}={path}: {rule}; {types}")
    if skipped:
        report_skipped(f"{field}={path}: {len(files):,} files; left out: {text_files.describe(skipped)}")
    texts: list[Any] = []
    for file in files:
        number = 0
        has_rows, is_object = (text_files.has_suffix(file, suffixes) for suffixes in (text_files.LINES, OBJECTS))
        try:
            with io.TextIOWrapper(text_files.open_bytes(file), encoding="utf-8") as opened:
                content = opened.read()
            lines = content.split("\n") if has_rows else [content]
            parts: dict[int, Any] = {at: line for at, line in enumerate(lines, start=1) if line.strip()}
            if has_rows or is_object:
                for number, part in parts.items():
                    row = json.loads(part)
                    parts[number] = row.get("text") if isinstance(row, dict) else None
        except (*text_files.BROKEN, RecursionError) as error:
            place = f"line {number:,} " if number else ""
            raise DataError(f"{field}={file}: {place}cannot be read ({error}); {types}") from error
        wrong = [number for number, text in parts.items() if not isinstance(text, str)]
        if wrong:
            raise DataError(f"{field}={file}: line {wrong[0]:,} holds no text in `text`; {types}")
        texts += parts.values()
    if not any(map(str.strip, texts)):
        raise DataError(f"{field}={path}: holds no text; {types}")
    return texts


@cache
def report_skipped(line: str) -> None:
    """Print what is left out once, as a command reads its text more than once."""
    if read_launch(os.environ).is_first:
        show(line, error=True)
