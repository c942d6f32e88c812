"""Text to measure a model on, of a file or of a run: whole documents, or pieces of one length."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from eval.engine.rows import Row, shortened, write_rows
from eval.engine.run import Measure
from eval.engine.subject import Subject, source
from lab.command import NOTHING_WRITTEN, Bar
from lab.data.config import DataConfig
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.data.tokenizer import check_ids, needed, special_ends
from lab.errors import ConfigError, DataError
from lab.files import writing
from lab.probe.needles import load_haystack, read_texts

SUFFIXES = (".txt", ".json", ".jsonl")
NO_CORPUS = "--text: must be set, a Hugging Face folder has no corpus of its own; give a text file"

IntArray = npt.NDArray[np.int64]
AnyIds = npt.NDArray[Any]  # of any integer type, as they lie in a store


def documents_of(subject: Subject, text: str | None, text_field: str) -> list[AnyIds]:
    """Read and encode the documents of a file or folder, or the held-out documents of a run.

    A document of a file begins with the tokenizer's first token; held-out documents are those of training, from
    their first token to the one that ends them.

    Raises: LabError where there is no text.
    """
    if text is None:
        if subject.model.experiment is None:
            raise ConfigError(NO_CORPUS)
        return list(TokenStore.open(shard_folder(subject.model.experiment.data), "held_out").documents())
    before, encode = special_ends(subject.tokenizer)[0], subject.tokenizer.encode
    texts = Bar(file_texts(Path(text), text_field), desc="encoding", leave=False)
    return [np.array(before + encode(each, add_special_tokens=False).ids, dtype=np.int64) for each in texts]


def file_texts(place: Path, text_field: str) -> list[str]:
    """Read the texts of a file or of a folder's files: a .txt or .json is one text, each line of a .jsonl is one.

    Raises: DataError for missing, broken or empty files.
    """
    files = sorted(path for path in place.rglob("*") if path.suffix in SUFFIXES) if place.is_dir() else [place]
    if not files:
        raise DataError(f"--text={place}: holds no .txt, .json or .jsonl file; give a folder with text in it")
    return [text for path in files for text in read_texts(path, "--text", text_field)]


def draw_texts(
    path: str | None,
    data: DataConfig | None,
    tokenizer: Tokenizer | None,
    *,
    n_tokens: int,
    texts: int,
    seed: int,
    vocab_size: int,
    option: str = "--texts",
    text_field: str | None = None,
) -> npt.NDArray[np.int64]:
    """Draw pieces of a file, or of the corpus where there is none; each begins with the tokenizer's first token.

    Pieces do not overlap, so that texts are independent, and are not cut at documents. `option` is the name of
    their number.

    Shapes: int64 (texts, n_tokens).
    Raises: LabError where there is no text, no tokenizer, or too little text.
    """
    tokenizer = needed(tokenizer)
    if path is not None:
        source = "\n".join(read_texts(Path(path), "--text", text_field or "text"))
    elif data is not None:
        source = load_haystack(None, data, tokenizer)
    else:
        raise ConfigError(NO_CORPUS)
    first = tokenizer.encode("").ids
    ids = np.array(tokenizer.encode(source, add_special_tokens=False).ids, dtype=np.int64)
    check_ids(np.append(ids, first), vocab_size)
    size = max(1, n_tokens - len(first))
    pieces = len(ids) // size
    if pieces < texts:
        where = f"--text={path}" if path is not None else "the run's corpus"
        raise DataError(
            f"{option}={texts}: {where} has room for {pieces} texts of {n_tokens} tokens; lower it, shorten the texts "
            "or give a longer --text"
        )
    chosen = np.random.default_rng(seed).permutation(pieces)[:texts]
    rows = [np.concatenate([first, ids[size * piece : size * (piece + 1)]]) for piece in chosen]
    return np.stack(rows)[:, :n_tokens].astype(np.int64)


class OnTexts(Measure):
    """A measure on pieces of text of one length, whose rows come all at once and go to a file of their own.

    It gives `records` in place of cells. The file's name follows from the checkpoint and the settings, so that the same
    measurement has the same file.
    """

    stopped = NOTHING_WRITTEN

    def records(self) -> Iterable[Row]:
        """Measure, and return what each row has beside the model and the seed."""
        raise NotImplementedError

    def rows(self) -> list[Row]:
        """Measure and write all rows.

        Raises: ConfigError where they cannot be written.
        """
        file = self.path
        with writing(f"-o {file.parent}", "folder"):  # before time is spent
            file.parent.mkdir(parents=True, exist_ok=True)
        about = {**source(self.subject.model, self.subject.device), "seed": self.options.seed}
        rows = [{**about, **row} for row in self.records()]
        write_rows(file, rows, f"-o {file.parent}", "folder")
        return rows

    @property
    def path(self) -> Path:
        """The file of the rows; the device changes no number and does not name it, nor does a text_field of `text`."""
        model, given = self.subject.model, asdict(self.options)
        settings = {key: value for key, value in given.items() if (key, value) != ("text_field", "text")}
        del settings["device"]
        digest = shortened(json.dumps({**settings, "method": model.method}, sort_keys=True))
        trained = model.name if model.consumed_tokens is None else f"{model.consumed_tokens:015d}"
        folder = self.request.folder or (Path("runs") if model.folder is None else model.folder / "eval")
        return folder / f"{self.kind}-{trained}-{digest}.jsonl"

    @property
    def title(self) -> str:
        """The title of the picture."""
        texts = self.options.texts
        return f"{self.subject.model.name}: {self.subject.model.method}; {texts} text{'s' * (texts != 1)}"

    def draw_texts(self, n_tokens: int) -> Tensor:
        """Draw the texts that the options ask for.

        Shapes: int64 (texts, n_tokens).
        Raises: LabError.
        """
        options, model = self.options, self.subject.model
        texts = draw_texts(
            options.text,
            model.experiment.data if model.experiment is not None else None,
            model.tokenizer,
            n_tokens=n_tokens,
            texts=options.texts,
            seed=options.seed,
            vocab_size=self.subject.vocab_size,
            text_field=options.text_field,
        )
        return torch.from_numpy(texts).to(self.subject.device)
