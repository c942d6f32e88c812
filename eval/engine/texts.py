"""The texts of measurements: a file's, a run's haystack or corpus, whole documents, or pieces of one length."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from eval.engine import run
from eval.engine.subject import AnyIds, Subject, source
from lab.core.command import NOTHING_WRITTEN, Bar, show
from lab.core.errors import ConfigError, DataError
from lab.core.types import IntArray, Row
from lab.data.encoding import count_bytes, encode_texts
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.data.synthetic import Synthetic
from lab.data.text_files import read_texts
from lab.data.tokenizer import check_ids, special_ends
from lab.probe.needles import load_haystack, write_filler

NO_CORPUS = "must be set, a Hugging Face folder has no corpus of its own; give a text file"
Document = tuple[AnyIds, AnyIds]  # and the bytes of the original text that each token encodes, nan if not known


def read_text(
    subject: Subject, path: str | None, haystack: str | None = None, option: str = "--text"
) -> tuple[str, str | None]:
    """Read the text of an option's path, a run's `haystack` or its corpus, and name the setting of a path.

    A run folder may have a copy of its haystack, which is read in place of the file.

    The default haystack of a Hugging Face folder is generated.

    Raises: ConfigError for another text of a Hugging Face folder without a file; DataError for a file that cannot be
        read.
    """
    model = subject.model
    if path is not None:
        return "\n".join(read_texts(Path(path), option)), f"{option}={path}"
    if model.experiment is None:
        if option != "--haystack":
            raise ConfigError(f"{option}: {NO_CORPUS}")
        show("haystack: text that the lab generates; --haystack=FILE hides the numbers in another one", error=True)
        # Its tokens are words, which are several tokens of the model.
        return write_filler(Synthetic(), max(50_000, model.train_len)), None
    run = model.home if haystack == model.experiment.probe_section.haystack else None
    source = haystack and f"probe.haystack={haystack}"
    return load_haystack(haystack, model.experiment.data, subject.tokenizer, run), source


def load_documents(subject: Subject, text: str | None) -> list[Document]:
    """Read and encode the documents of a file, folder or pattern, or the held-out documents of a run.

    A document of a file begins with the tokenizer's first token; held-out documents are those of training, from
    their first token to the one that ends them.

    Raises: LabError where there is no text.
    """
    if text is None:
        if subject.model.experiment is None:
            raise ConfigError(f"--text: {NO_CORPUS}")
        store = TokenStore.open(shard_folder(subject.model.experiment.data), "held_out")
        if store.bytes is None:
            return [(ids, np.full(len(ids), np.nan)) for ids in store.documents()]
        return list(zip(store.documents(), store.bytes.documents(), strict=True))
    before = np.array(special_ends(subject.tokenizer)[0], dtype=np.int64)
    documents: list[Document] = []
    for content in Bar(read_texts(Path(text), "--text"), desc="encoding", leave=False):
        ids, spans = next(encode_texts(subject.tokenizer, [content], with_spans=True))
        assert spans is not None, "they are asked for"
        sizes = np.append(np.zeros_like(before), count_bytes(spans, content))
        documents.append((np.append(before, ids), sizes))
    return documents


def hash_documents(documents: Sequence[IntArray]) -> str:
    # Each length precedes its tokens: without it, documents cut elsewhere would have the same hash.
    parts = [np.append(len(ids), ids).astype("<i8") for ids in documents]
    return hashlib.sha256(np.concatenate(parts).tobytes()).hexdigest()[:16]


def sample_texts(
    text: str,
    name: str | None,
    tokenizer: Tokenizer,
    *,
    n_tokens: int,
    texts: int,
    seed: int,
    vocab_size: int,
    option: str = "--texts",
) -> IntArray:
    """Sample pieces of a text, each of which begins with the tokenizer's first token.

    Pieces do not overlap, so that texts are independent, and are not cut at documents. `option` is the name of their
    number, `name` that of the text, None for a run's corpus.

    Shapes: int64 (texts, n_tokens).
    Raises: DataError for too little text, or a tokenizer that is not the model's.
    """
    first, _ = special_ends(tokenizer)
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)
    check_ids(np.append(ids, first), vocab_size)
    size = max(1, n_tokens - len(first))
    # The first token of a piece is the tokenizer's own and takes the place of one token of the text.
    pieces = len(ids) // size
    if pieces < texts:
        have = f"{name or 'the corpus of the run'} has room for {pieces} texts of {n_tokens} tokens"
        raise DataError(f"{option}={texts}: {have}; lower it, shorten the texts or give a longer --text")
    # A permutation, so that more texts of the same seed begin with those of fewer.
    chosen = np.random.default_rng(seed).permutation(pieces)[:texts]
    rows = [np.concatenate([first, ids[size * piece : size * (piece + 1)]]) for piece in chosen]
    return np.stack(rows)[:, :n_tokens].astype(np.int64)


class OnTexts(run.Measure):
    """A measure on pieces of text of one length, whose rows come all at once."""

    stopped = NOTHING_WRITTEN

    @property
    def origin(self) -> Row:
        return {**source(self.subject.model, self.subject.device), "seed": self.options.seed}

    def title(self) -> str:
        return f"{super().title()}; texts: {self.options.texts}"

    def sample_texts(self, n_tokens: int) -> Tensor:
        """Sample the texts that the options ask for.

        Shapes: int64 (texts, n_tokens).
        Raises: LabError.
        """
        options, subject = self.options, self.subject
        pieces = sample_texts(
            *read_text(subject, options.text),
            subject.tokenizer,
            n_tokens=n_tokens,
            texts=options.texts,
            seed=options.seed,
            vocab_size=subject.vocab_size,
        )
        return torch.from_numpy(pieces).to(subject.device)
