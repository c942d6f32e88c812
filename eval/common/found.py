"""What an evaluation found: text for people, rows for machines, and the files that it has written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.files import writing
from lab.train.folder import RunFolder

Row = Mapping[str, Any]


class Found(NamedTuple):
    """What a command found: text to print, the rows behind it, the files that it has written."""

    text: str
    rows: Sequence[Row] = ()
    written: Path | None = None
    picture: Path | None = None

    @property
    def whole(self) -> str:
        """The text, and where the files are."""
        written = None if self.written is None else f"written to {self.written}"
        picture = None if self.picture is None else f"picture: {self.picture}"
        return "\n".join(part for part in (self.text or None, written, picture) if part is not None)


def document(name: str, found: Sequence[Found]) -> str:
    """Write what was found as one JSON object.

    Example:
        >>> document("eval.x", [Found("text", [{"score": float("nan"), "n": 2}], Path("a.jsonl"))])
        '{"command": "eval.x", "rows": [{"score": null, "n": 2}], "files": ["a.jsonl"], "pictures": []}'
    """
    files = [each.written for each in found if each.written is not None]
    pictures = [each.picture for each in found if each.picture is not None]
    rows = [row for each in found for row in each.rows]
    whole = {"command": name, "rows": rows, "files": files, "pictures": pictures}
    return json.dumps(finite(whole), allow_nan=False)


def finite(value: Any) -> Any:
    """Turn a value into what JSON has: null in place of numbers that are not finite, plain numbers, text of paths.

    Example:
        >>> finite({"a": (1, float("inf")), "b": Path("x")})
        {'a': [1, None], 'b': 'x'}
    """
    value = value.item() if hasattr(value, "item") and not isinstance(value, dict) else value
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def save(found: Found, folder: Path | None, name: str) -> Found:
    """Write the rows to FOLDER/NAME.jsonl, where a folder is asked for.

    Raises: ConfigError where that cannot be done.
    """
    if folder is None:
        return found
    with writing(f"-o {folder}", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        RunFolder(folder).write_records(f"{name}.jsonl", [finite(row) for row in found.rows])
    return found._replace(written=folder / f"{name}.jsonl")


def file_in(place: Path | None, default: str, home: Path = Path()) -> Path:
    """Name the file of -o, which is a file with an ending, or a folder for one of the default name.

    Example:
        >>> file_in(Path("out"), "report.html").as_posix(), file_in(Path("a.html"), "report.html").as_posix()
        ('out/report.html', 'a.html')
    """
    if place is None:
        return home / default
    return place if place.suffix else place / default
