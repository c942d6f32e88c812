"""Windows of one length out of a text file."""

from __future__ import annotations

from tokenizers import Tokenizer

from eval.engine.texts import draw_texts
from lab.data.packing import Windows


def file_windows(path: str, tokenizer: Tokenizer, *, length: int, windows: int, seed: int, vocab_size: int) -> Windows:
    """Draw windows of a text file; each begins with the tokenizer's first token, and they do not overlap.

    Raises: DataError where there are too few.
    """
    rows = draw_texts(
        path,
        None,
        tokenizer,
        n_tokens=length + 1,
        texts=windows,
        seed=seed,
        vocab_size=vocab_size,
        option="--windows",
    )
    return Windows(rows[:, :-1], rows[:, 1:])
