"""Measure perplexity against context length, by a sliding window over whole documents.

    probe-lab perplexity MODEL [--option=value ...] [-o FOLDER]

At each context length the same documents are read in windows of that many tokens, moved by the stride.
eval/engine/sliding.py defines which tokens are scored with which context, and the intervals:

    probe-lab perplexity runs/cpu_demo
    probe-lab perplexity runs/tiny_2k --lengths=512,1024,2048,4096 --documents=50
    probe-lab perplexity models/Llama-2-7B --text=pg19/ --lengths=4096,8192,16384

`--protocol=whole-windows` is that of the released script of arXiv:2402.17463. It joins all documents, and averages the
loss over whole windows, of all tokens but a window's first. One text has no interval:

    probe-lab perplexity models/Llama-2-7B --text=pg19/ --protocol=whole-windows --lengths=4096,8192

Position methods take the place of the model's own. A call adds its rows to the existing ones:

    probe-lab perplexity runs/tiny_2k --lengths=2048,4096 --distance=dca:train_len=2048

Prints a table. Next to perplexity it has bits per byte, as losses of different tokenizers do not compare: the loss in
bits, times the scored tokens of the documents, over the bytes of their original text. Adds a line for each length, and
for each document with its loss, to perplexity-NAME-HASH.jsonl. A second call continues from there.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from eval.engine.command import CellOptions
from eval.engine.methods import report_as_options
from eval.engine.run import Cell, Measure
from eval.engine.sliding import text_losses, whole_windows, windows
from eval.engine.subject import SUBJECT, doublings
from eval.engine.text import limits
from eval.engine.texts import Document, hash_documents, load_documents
from lab.core.command import start
from lab.core.errors import ConfigError, DataError
from lab.core.schema import LONGEST, Length, PathText, Tests
from lab.core.types import CONFIDENCE, Row
from lab.data.tokenizer import check_ids, special_ends

PROTOCOLS = {"sliding-window": windows, "whole-windows": whole_windows}
PairLength = Annotated[int, Ge(2), Le(LONGEST)]  # a token predicts the next


class PerplexityOptions(CellOptions):
    """Options of this command."""

    lengths: tuple[PairLength, ...] | None = None
    """Context lengths in tokens, with commas between them; default: powers of two from a quarter of the training
    window up to it."""
    stride: Length | None = None
    """Tokens that the window moves by, at most the shortest length; default: 256, or half the shortest length if that
    is less."""
    protocol: Literal["sliding-window", "whole-windows"] = "sliding-window"
    """Documents of which every token is scored once, or whole windows of all documents as one text."""
    bos: bool | None = None
    """Whether windows inside a text also begin with the token that begins texts, in place of their first one; default:
    true if the tokenizer adds one, and false for whole windows, as in the released script."""
    documents: Tests | None = None
    """Documents, sampled from those that are long enough; default: 10, or all of them if they are joined."""
    min_tokens: PairLength | None = None
    """Tokens of the shortest document that is taken; default: the longest of --lengths."""
    text: PathText | None = None
    """Source of the documents: a .txt, .md, .py or .json file, each one document, a .jsonl file with one in each
    line, or a folder or a pattern of these; default: the run's held-out documents."""

    def rules(self) -> list[str]:
        """Reject strides above the lengths, and options of documents where all are joined."""
        errors = []
        lengths = self.lengths or ()
        if lengths and self.stride is not None and self.stride > min(lengths):
            # A stride above the context leaves tokens between two windows that neither of them scores.
            rule = f"must be <= {min(lengths)}, the shortest length, or tokens are passed over"
            errors.append(f"stride={self.stride}: {rule}; lower it")
        if self.protocol == "whole-windows":
            for name in ("documents", "min_tokens"):
                value = getattr(self, name)
                if value is not None:
                    errors.append(f"{name}={value}: all documents are joined; leave it out")
        return errors


class Perplexity(Measure):
    """The perplexity of the same documents at each context length."""

    kind = "perplexity"
    options: PerplexityOptions
    named_by = (*SUBJECT, "protocol", "texts", "stride", "bos", "n", "length")
    columns = (
        ("context", "length", ","),
        ("perplexity", "score", ".4f"),
        ("bits per byte", lambda row: row.get("bits_per_byte"), ".4f"),
        ("95% interval", limits, ""),
        ("scored tokens", "scored_tokens", ","),
    )

    def prepare(self) -> None:
        """Choose the lengths and the documents."""
        options = self.options
        window = max(2, self.subject.model.train_len)
        # A quarter of the window, rounded up, and at least 2: the first token of a context predicts the second.
        first = max(2, -(-window // 4))
        self.contexts = tuple(sorted(set(options.lengths or doublings(first, window))))
        # The stride of arXiv:2402.17463, section 4.1, is 256.
        self.stride = options.stride or max(1, min(256, self.contexts[0] // 2))
        # The rules are checked again, with the defaults in place.
        with report_as_options():
            self.options = replace(options, lengths=self.contexts, stride=self.stride)
        self.before, _ = special_ends(self.subject.tokenizer)
        self.bos = None
        if options.bos and not self.before:
            raise ConfigError("--bos=true: the tokenizer begins no text with a token; leave it out")
        if self.before and (options.bos or (options.bos is None and options.protocol == "sliding-window")):
            self.bos = self.before[0]
        documents = load_documents(self.subject, options.text)
        self.n = len(documents)
        self.shorter = 0
        choose = self.join if options.protocol == "whole-windows" else self.sample_documents
        documents = choose(documents)
        self.documents = [np.asarray(ids, dtype=np.int64) for ids, _ in documents]
        check_ids(np.concatenate(self.documents), self.subject.vocab_size)
        # Nothing predicts the first token of a document, which has no loss.
        mean = float(np.concatenate([n_bytes[1:] for _, n_bytes in documents]).mean())
        self.bytes_per_token = None if math.isnan(mean) else mean

    def join(self, documents: Sequence[Document]) -> list[Document]:
        """Join all documents, only the first with the tokens that begin a text. Reject less text than a window."""
        begins = len(self.before)
        parts = [*documents[:1], *((ids[begins:], n_bytes[begins:]) for ids, n_bytes in documents[1:])]
        total = sum(len(ids) for ids, _ in parts)
        least = self.contexts[-1] + self.stride + 1
        if total < least:
            rule = f"whole windows of it need {least} tokens, and all documents together have {total}"
            raise DataError(f"--lengths={self.contexts[-1]}: {rule}; lower it, or give more --text")
        ids, sizes = map(np.concatenate, zip(*parts, strict=True))
        return [(ids, sizes)]

    def sample_documents(self, documents: Sequence[Document]) -> list[Document]:
        """Sample documents that are long enough, in their order. Reject too few of them."""
        options = self.options
        least = options.min_tokens or self.contexts[-1]
        self.n = options.documents or 10
        long_enough = [document for document in documents if len(document[0]) >= least]
        if len(long_enough) < self.n:
            longest = max([len(ids) for ids, _ in documents], default=0)
            rule = f"has {len(long_enough)} documents of {least} tokens or more, the longest has {longest}"
            fix = "lower it, --lengths or --min_tokens, or give another --text"
            raise DataError(f"--documents={self.n}: {options.text or 'the held-out split'} {rule}; {fix}")
        order = np.random.default_rng(options.seed).permutation(len(long_enough))
        self.shorter = len(documents) - len(long_enough)
        return [long_enough[number] for number in np.sort(order[: self.n])]

    def cells(self) -> Iterator[Cell]:
        """List the context lengths."""
        cut = PROTOCOLS[self.options.protocol]
        for context in self.contexts:
            row = {
                "metric": "perplexity",
                "protocol": self.options.protocol,
                "length": context,
                "stride": self.stride,
                "bos": self.bos is not None,
                "n": self.n,
                "source": self.options.text or "held out",
                "texts": hash_documents(self.documents),
                "shorter_left_out": self.shorter,
                "seed": self.options.seed,
            }
            count = sum(len(list(cut(len(ids), context, self.stride))) for ids in self.documents)
            yield Cell(row, count, context, f"{context:,} tokens")

    def measure(self, cell: Cell) -> Row:
        """Score the documents with one context length; a record is a document's loss in nats and its tokens."""
        context = cell.tokens
        started = time.perf_counter()
        losses = text_losses(
            self.subject.losses,
            self.documents,
            partial(PROTOCOLS[self.options.protocol], context=context, stride=self.stride),
            rows=self.options.rows(context),
            bos=self.bos,
            done=self.bar.update,
        )
        low, high = losses.limits or (None, None)
        seconds = round(time.perf_counter() - started, 3)
        numbers = enumerate(zip(losses.nll.tolist(), losses.tokens.tolist(), strict=True))
        self.store_tests(cell, ({"test": number, "nll": nll, "tokens": tokens} for number, (nll, tokens) in numbers))
        return {
            "score": losses.perplexity,
            "low": low,
            "high": high,
            "confidence": CONFIDENCE,
            "loss": losses.loss,
            "bits_per_byte": self.bytes_per_token and losses.loss / math.log(2) / self.bytes_per_token,
            "scored_tokens": int(losses.tokens.sum()),
            "seconds": seconds,
        }

    def title(self) -> str:
        return f"{super().title()}; {self.n} documents, {self.options.text or 'held out'}, stride {self.stride}"


main = Perplexity.main

if __name__ == "__main__":
    start(main)
