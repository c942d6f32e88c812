"""Shared by measurements on pieces of text: drawing the pieces, and writing the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.common.command import Request
from eval.common.documents import draw_texts
from eval.common.results import Row, shortened, write_rows
from eval.common.subject import source
from lab.files import writing
from lab.loading import OpenedModel

NOT_IN_DIGEST = ("rows", "device")  # options that change no number


def texts_of(model: OpenedModel, options: Any, n_tokens: int, device: torch.device) -> Tensor:
    """Draw the texts that a command's options ask for.

    Shapes: int64 (texts, n_tokens).
    Raises: LabError.
    """
    texts = draw_texts(
        options.text,
        model.experiment.data if model.experiment is not None else None,
        model.tokenizer,
        n_tokens=n_tokens,
        texts=options.texts,
        seed=options.seed,
        vocab_size=model.decoder.cfg.vocab_size,
        text_field=options.text_field,
    )
    return torch.from_numpy(texts).to(device)


def write_results(
    files: tuple[Path, Path | None],
    model: OpenedModel,
    request: Request,
    device: torch.device,
    records: Iterable[Row],
    draw: Callable[[str, Path], None],
) -> str:
    """Write the records, draw the picture if requested, and return their files.

    Raises: LabError.
    """
    (rows, picture), options = files, request.options
    known = {**source(model, device), "seed": options.seed}
    write_rows(rows, [{**known, **row} for row in records], f"--rows={rows}")
    if picture is None:
        return f"written to {rows}"
    draw(f"{model.name}: {model.method}; {options.texts} text{'s' * (options.texts != 1)}", picture)
    return f"written to {rows}\npicture: {picture}"


def result_files(kind: str, request: Request, model: OpenedModel) -> tuple[Path, Path | None]:
    """Name the files of results and of the picture, and make their folder before time is spent on them.

    The names follow from the checkpoint and the settings, so that the same measurement has the same files.

    Raises: ConfigError where the folder cannot be made.
    """
    given = asdict(request.options)
    named = {"text_field"} if given["text_field"] == "text" else set()  # an option that earlier versions did not have
    settings = {key: value for key, value in given.items() if key not in {*NOT_IN_DIGEST, *named}}
    text = json.dumps({**settings, "method": model.method}, sort_keys=True)
    digest = shortened(text)
    if model.folder is None or model.consumed_tokens is None:
        stem = Path("runs") / f"{kind}-{model.name}-{digest}"
    else:
        stem = model.folder / "eval" / f"{kind}-{model.consumed_tokens:015d}-{digest}"
    rows = Path(request.options.rows or f"{stem}.jsonl")
    with writing(f"--rows={rows}", "file"):
        rows.parent.mkdir(parents=True, exist_ok=True)
    picture = request.picture or Path(f"{stem}.png")
    return rows, picture if request.plots else None
