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
from eval.common.found import Found
from eval.common.results import Row, shortened, write_rows
from eval.common.subject import source
from lab.files import writing
from lab.loading import OpenedModel

NOT_IN_DIGEST = ("device",)  # options that change no number


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
    file: Path,
    model: OpenedModel,
    request: Request,
    device: torch.device,
    records: Iterable[Row],
    draw: Callable[[str, Path], None],
) -> Found:
    """Write the records, draw the picture if requested, and return both without a text.

    Raises: LabError.
    """
    options, picture = request.options, file.with_suffix(".png") if request.plots else None
    rows = [{**source(model, device), "seed": options.seed, **row} for row in records]
    write_rows(file, rows, f"-o {file.parent}", "folder")
    if picture is not None:
        draw(f"{model.name}: {model.method}; {options.texts} text{'s' * (options.texts != 1)}", picture)
    return Found("", rows, file, picture)


def result_file(kind: str, request: Request, model: OpenedModel) -> Path:
    """Name the file of results, and make its folder before time is spent on them.

    The name follows from the checkpoint and the settings, so that the same measurement has the same file.

    Raises: ConfigError where the folder cannot be made.
    """
    given = asdict(request.options)
    named = {"text_field"} if given["text_field"] == "text" else set()  # an option that earlier versions did not have
    settings = {key: value for key, value in given.items() if key not in {*NOT_IN_DIGEST, *named}}
    text = json.dumps({**settings, "method": model.method}, sort_keys=True)
    digest = shortened(text)
    trained = model.name if model.consumed_tokens is None else f"{model.consumed_tokens:015d}"
    folder = request.folder or (Path("runs") if model.folder is None else model.folder / "eval")
    with writing(f"-o {folder}", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{kind}-{trained}-{digest}.jsonl"
