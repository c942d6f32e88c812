"""Measure perplexity against context length, by a sliding window over whole documents.

    python -m eval.perplexity MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. At each context length the same documents are read in windows of that many tokens, moved by the stride;
eval/engine/sliding.py defines which tokens are scored with which context, and the intervals:

    python -m eval.perplexity runs/cpu_demo
    python -m eval.perplexity runs/tiny_2k --lengths=512,1024,2048,4096 --documents=50 --tokens=16384 --plot
    python -m eval.perplexity models/Llama-2-7B --text=pg19/ --lengths=4096,8192,16384 --plot

Position methods take the place of the model's own. A call adds its rows to the existing ones, and the picture shows
all that were measured on the same documents, so that methods and checkpoints are compared by one call for each:

    python -m eval.perplexity runs/tiny_2k --lengths=2048,4096 --plot --position.distance.method=dca \
        --position.distance.train_len=2048

Windows that exceed one GPU's memory are scored by several processes together, each with its part of their tokens; their
number must divide the model's key-value heads, and the results are those of one process:

    torchrun --standalone --nproc-per-node=8 -m eval.perplexity runs/anchor_128k --lengths=131072

Prints a table, and adds a line for each length to perplexity.jsonl in eval/ of the run folder (runs/perplexity-NAME for
a Hugging Face folder) or FOLDER, once it is known; a second call continues from there. perplexity-cases/ holds
every document's loss.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from eval.engine.answers import Cell, Done, fill
from eval.engine.command import CellOptions, Form, Request, run
from eval.engine.rows import Found, Results, Row
from eval.engine.sharing import Score, measure_together
from eval.engine.sliding import CONFIDENCE, TextLosses, text_losses, windows
from eval.engine.subject import SUBJECT, Subject, doublings, note_idle_distance, result_folder
from eval.engine.table import limits, to_text
from eval.engine.texts import Documents, draw_documents
from eval.perplexity.picture import draw_perplexity
from lab.command import start
from lab.schema import Length, PathText, Positive, Tests

PROTOCOL = "sliding-window"
STRIDE = 256  # tokens (arXiv:2402.17463, section 4.1)
MOST_TOKENS = 4096  # of the longest context, where the training window is not known
COMPARED_BY = ("protocol", "texts", "stride", "n")  # rows that agree in these share a picture
NAMED_BY = (*SUBJECT, *COMPARED_BY, "length")


@dataclass(frozen=True, kw_only=True)
class PerplexityOptions(CellOptions):
    """Options of this command."""

    lengths: tuple[Length, ...] | None = None
    """Context lengths in tokens, with commas between them; left out, powers of two from a quarter of the training
    window up to it."""
    stride: Length | None = None
    """Tokens that the window moves by, at most the shortest length; left out, 256, or half the shortest length where
    that is less."""
    documents: Tests = 10
    """Documents, drawn from those that are long enough."""
    min_tokens: Length | None = None
    """Tokens of the shortest document that is taken; left out, the longest of --lengths."""
    tokens: Positive | None = None
    """Tokens of each document that are read, from its beginning; left out, all of them."""
    text: PathText | None = None
    """Source of the documents: a .txt or .json file, each one document, a .jsonl file with one in each line, or a
    folder of these; left out, the run's held-out documents."""
    text_field: str = "text"
    """Field of the rows of a .json or .jsonl file that holds the text."""

    def rules(self) -> list[str]:
        """Refuse strides and cuts that contradict the lengths."""
        faults = [
            f"lengths={c}: must be >= 2, a token predicts the next; raise it" for c in self.lengths or () if c < 2
        ]
        if self.lengths and self.stride is not None and self.stride > min(self.lengths):
            rule = f"must be <= {min(self.lengths)}, the shortest length, or tokens are passed over"
            faults.append(f"stride={self.stride}: {rule}; lower it")
        least = max(self.lengths or (1,)) if self.min_tokens is None else self.min_tokens
        if self.tokens is not None and self.tokens < least:
            what = "the longest length" if self.min_tokens is None else "min_tokens"
            faults.append(f"tokens={self.tokens}: must be >= {least}, {what}; raise it")
        if self.min_tokens is not None and self.min_tokens < 2:
            faults.append(f"min_tokens={self.min_tokens}: must be >= 2, a token predicts the next; raise it")
        return faults

    def contexts(self, train_len: int | None) -> tuple[int, ...]:
        """List the context lengths, rising.

        Example:
            >>> PerplexityOptions().contexts(2048), PerplexityOptions().contexts(192)
            ((512, 1024, 2048), (64, 128))
        """
        window = max(2, train_len or MOST_TOKENS)
        return tuple(sorted(set(self.lengths or doublings(max(2, -(-window // 4)), window))))

    def step(self, contexts: Sequence[int]) -> int:
        """Choose the stride.

        Example:
            >>> PerplexityOptions().step([512, 1024]), PerplexityOptions().step([64]), PerplexityOptions().step([2])
            (256, 32, 1)
        """
        return self.stride or max(1, min(STRIDE, min(contexts) // 2))


def measure(request: Request, subject: Subject, score: Score) -> Found:
    """Measure what is missing, write it, and return the table.

    Raises: LabError.
    """
    options: PerplexityOptions = request.options
    contexts = options.contexts(subject.model.train_len)
    options = PerplexityOptions(**{**vars(options), "lengths": contexts, "stride": options.step(contexts)})
    note_idle_distance(request.overrides, subject.model.decoder.distance, contexts[-1])
    documents = draw_documents(
        options.text,
        subject.model.experiment.data if subject.model.experiment is not None else None,
        subject.tokenizer,
        documents=options.documents,
        least=contexts[-1] if options.min_tokens is None else options.min_tokens,
        most=options.tokens,
        seed=options.seed,
        vocab_size=subject.vocab_size,
        text_field=options.text_field,
    )
    cells = Results(result_folder("perplexity", request, subject) / "perplexity.jsonl", NAMED_BY)
    rows = measure_contexts(subject, score, documents, options, contexts, cells)
    picture = cells.path.with_suffix(".png") if request.plots else None
    if picture is not None:
        draw_perplexity(cells.alike(rows[0], COMPARED_BY), subject.model.train_len, picture)
    return Found(table(rows), rows, cells.path, picture)


def measure_contexts(
    subject: Subject,
    score: Score,
    documents: Documents,
    options: PerplexityOptions,
    contexts: Sequence[int],
    cells: Results,
) -> list[Row]:
    """Measure every context length whose row is missing."""
    stride = options.step(contexts)
    counts = {c: sum(1 for ids in documents.ids for _ in windows(len(ids), c, stride)) for c in contexts}

    def run_context(row: Row, done: Done) -> Row:
        context, started = row["length"], time.perf_counter()
        losses = text_losses(score, documents.ids, context, stride, rows=options.rows(context), done=done)
        seconds = round(time.perf_counter() - started, 3)
        file = f"perplexity-cases/{context}-{cells.digest(row)}.jsonl"
        return cells.add({**row, **result(losses), "seconds": seconds}, (file, documents_of(losses)))

    wanted = [
        Cell(describe(subject, documents, options, context, stride), counts[context], f"{context:,} tokens")
        for context in contexts
    ]
    return fill(cells, wanted, run_context, kind="perplexity", unit="window")


def describe(
    subject: Subject, documents: Documents, options: PerplexityOptions, context: int, stride: int
) -> dict[str, Any]:
    """Describe what a row measures, on what, and with what."""
    return {
        **subject.row,
        "metric": "perplexity",
        "protocol": PROTOCOL,
        "length": context,
        "stride": stride,
        "n": len(documents.ids),
        "source": documents.source,
        "texts": documents.digest,
        "shorter_left_out": documents.shorter,
        "seed": options.seed,
    }


def result(losses: TextLosses) -> dict[str, Any]:
    """Summarize one context length."""
    low, high = losses.limits or (None, None)
    tokens = int(losses.tokens.sum())
    known = {"score": losses.perplexity, "low": low, "high": high, "confidence": CONFIDENCE}
    return {**known, "loss": losses.loss, "scored_tokens": tokens}


def documents_of(losses: TextLosses) -> list[Row]:
    """List every document's loss in nats and its number of scored tokens."""
    each = zip(losses.nll.tolist(), losses.tokens.tolist(), strict=True)
    return [{"test": number, "nll": nll, "tokens": tokens} for number, (nll, tokens) in enumerate(each)]


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a table."""
    first = rows[0]
    title = f"{first['model']}: {first['method']}; {first['n']} documents, {first['source']}, stride {first['stride']}"
    shown = [
        {
            "context": row["length"],
            "perplexity": row["score"],
            "95% interval": limits(row),
            "scored tokens": row["scored_tokens"],
        }
        for row in rows
    ]
    return f"{title}\n\n{to_text(shown, {'context': ',', 'perplexity': '.4f', 'scored tokens': ','})}"


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    measure_shared = partial(measure_together, measure=measure)
    return run("eval.perplexity", __doc__, Form(options=PerplexityOptions, shared=True), measure_shared, arguments)


if __name__ == "__main__":
    start(main)
