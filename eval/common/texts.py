"""Texts of one length to measure a model on: pieces of a file, or of the corpus that a run was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lab.data.config import DataConfig
from lab.data.tokenizer import check_ids, needed
from lab.errors import ConfigError, DataError
from lab.probe.haystacks import load_haystack, read_text


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
) -> npt.NDArray[np.int64]:
    """Draw pieces of a file, or of the corpus where there is none; each begins with the tokenizer's first token.

    Pieces do not overlap, so that texts are independent, and are not cut at documents. `option` is what a command calls
    their number.

    Shapes: int64 (texts, n_tokens).
    Raises: LabError where there is no text, no tokenizer, or too little text.
    """
    tokenizer = needed(tokenizer)
    if path is None and data is None:
        raise ConfigError("--text: must be set, a Hugging Face folder has no corpus of its own; give a text file")
    if path is not None:
        source = read_text(Path(path), "--text")
    else:
        assert data is not None, "refused above"
        source = load_haystack(None, data, tokenizer)
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
