"""What a harness asks of a model, answered by a decoder: log-likelihoods of continuations and of texts, and answers.

Everything is in the model's own tokens. A continuation y_1 .. y_m after a context x_1 .. x_n scores

    sum_i ln p(y_i | x_1 .. x_n y_1 .. y_(i-1)),    greedy where every y_i is the most likely token

The context is encoded with the tokens that begin a document, and so is context and continuation together; what the
latter has beyond the former's length is the continuation. White space at a context's end belongs to the continuation.
An empty context is the token that begins a document, or where there is none the one that ends it.

A text is read whole where it fits into max_length tokens, else in pieces, each token being scored once: a first piece
of max_length tokens after the token that begins a document, then pieces of max_length tokens, each after the one token
before it, and a last piece of what is left, which sees max_length tokens as well. Tokens of a context that do not fit
are cut off on the left, for answers with room for the longest answer, and such requests are counted.

Requests of one length run side by side, without padding, longest first; continuations of one context that ask the
decoder for the same pass share it, as the one-token choices of a question do.

Source: lm-evaluation-harness, docs/model_guide.md, for the meaning of the three requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from eval.protocol import Generates
from eval.ruler.cases import Writer
from lab.data.tokenizer import special_ends
from lab.errors import ConfigError, DataError
from lab.model.decoder import Decoder
from lab.model.inspection import BLOCK_LOGITS, last_block

GREEDY_KEYS = ("until", "do_sample", "temperature", "top_p", "top_k")  # of generation; the last three idle when greedy
BUDGET_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # one meaning, first one taken
Done = Callable[[int], object]


class Scored(NamedTuple):
    """One request of a pass: the last `len(targets)` tokens that follow `inputs`, shifted by one."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]


class Generation(NamedTuple):
    """What a task asks of an answer."""

    until: tuple[str, ...]
    budget: int


class Runs(Protocol):
    """Chooses how many rows of a length run side by side."""

    def __call__(self, length: int) -> int:
        """Count the rows."""
        ...


@dataclass
class Scorer:
    """A decoder that answers requests, and what it has counted so far."""

    decoder: Decoder
    writer: Writer
    generate: Generates
    computing: Callable[[], AbstractContextManager[Any]]
    stop_id: int | None
    max_length: int
    default_budget: int
    rows: Runs
    device: torch.device
    cut: int = 0
    longest: int = 0
    prefix_id: int = field(init=False)

    def __post_init__(self) -> None:
        """Find the token that an empty context stands for.

        Raises: DataError for a tokenizer that neither begins nor ends a document.
        """
        begins = special_ends(self.writer.tokenizer)[0]
        prefix = begins[-1] if begins else self.stop_id
        if prefix is None:
            raise DataError("tokenizer.json: no token begins or ends a document; give config.json an eos_token_id")
        self.prefix_id = prefix

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encode a context and its continuation.

        Raises: DataError for a continuation without tokens of its own.
        """
        if context:
            text = context.rstrip()
            ids = self.writer.encode(text)
            before, after = ids or [self.prefix_id], self.writer.encode(context + continuation)[len(ids) :]
        else:
            after = self.bare(continuation)
            before = [self.prefix_id]
            if after[:1] == before:
                after = after[1:]
        if not after:
            shown = f"{context[-20:]!r} + {continuation[:20]!r}"
            raise DataError(f"{shown}: the continuation has no token of its own in this tokenizer; mend the task")
        return before, after

    def bare(self, text: str) -> list[int]:
        """Encode a text without the tokens that begin and end a document."""
        ids: list[int] = self.writer.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def loglikelihoods(
        self, pairs: Sequence[tuple[str, str]], done: Done = lambda requests: None
    ) -> list[tuple[float, bool]]:
        """Score continuations: their log-likelihood in nats, and whether greedy decoding gives them.

        Raises: ConfigError for a continuation that is longer than the window, DataError for one without tokens.
        """
        requests = []
        for context, continuation in pairs:
            before, after = self.pair(context, continuation)
            if len(after) > self.max_length:
                fault = f"a continuation takes {len(after)} tokens"
                raise ConfigError(f"--max_length={self.max_length}: {fault}; raise it")
            ids = (before + after)[-(self.max_length + 1) :]
            self.cut += len(before) + len(after) > len(ids)
            requests.append(Scored(tuple(ids[:-1]), tuple(after)))
        return self.scores(requests, done)

    def rolling(self, texts: Sequence[str], done: Done = lambda requests: None) -> list[float]:
        """Score whole texts, each on its own: their log-likelihoods in nats."""
        pieces = [(number, piece) for number, text in enumerate(texts) for piece in self.pieces(self.bare(text))]
        sums = [0.0] * len(texts)
        for (number, _), (nats, _) in zip(pieces, self.scores([piece for _, piece in pieces], lambda n: None)):
            sums[number] += nats
        done(len(texts))
        return sums

    def pieces(self, ids: Sequence[int]) -> Iterator[Scored]:
        """Cut a text into pieces.

        Example:
            >>> scorer = Scorer.__new__(Scorer)
            >>> scorer.prefix_id, scorer.max_length = 0, 4
            >>> [(piece.inputs, piece.targets) for piece in scorer.pieces([11, 12, 13, 14, 15, 16])]
            [((0, 11, 12, 13), (11, 12, 13, 14)), ((12, 13, 14, 15), (15, 16))]
        """
        whole = (self.prefix_id, *ids)
        for start in range(0, len(ids), self.max_length):
            end = min(start + self.max_length, len(ids))
            yield Scored(whole[max(0, end - self.max_length) : end], tuple(ids[start:end]))

    def scores(self, requests: Sequence[Scored], done: Done) -> list[tuple[float, bool]]:
        """Run the passes that requests need, each once."""
        self.check_ids(token for inputs, targets in requests for token in (*inputs, targets[-1]))
        asking: dict[tuple[int, ...], list[int]] = {}
        for number, request in enumerate(requests):
            asking.setdefault(request.inputs, []).append(number)
        found: dict[int, tuple[float, bool]] = {}
        for batch in by_length(list(asking), self.rows):
            rows = [(row, requests[number].targets) for row, inputs in enumerate(batch) for number in asking[inputs]]
            with self.computing():
                values = token_scores(self.decoder, torch.tensor(batch, device=self.device), rows)
            found |= zip((number for inputs in batch for number in asking[inputs]), values, strict=True)
            self.longest = max(self.longest, len(batch[0]))
            done(len(rows))
        return [found[number] for number in range(len(requests))]

    def answers(
        self, requests: Sequence[tuple[str, Mapping[str, Any]]], done: Done = lambda requests: None
    ) -> list[str]:
        """Continue contexts greedily, each up to the first of its stop strings, which is left out.

        Raises: ConfigError for settings of sampling, and for answers that leave no room for a context.
        """
        asking: dict[tuple[int, Generation], list[int]] = {}
        contexts = []
        for number, (context, settings) in enumerate(requests):
            wanted = self.generation(settings)
            ids = self.writer.encode(context) or [self.prefix_id]
            contexts.append(ids[-(self.max_length - wanted.budget) :])
            self.cut += len(ids) > len(contexts[-1])
            asking.setdefault((len(contexts[-1]), wanted), []).append(number)
        self.check_ids(token for ids in contexts for token in ids)
        found: dict[int, str] = {}
        for (length, wanted), numbers in sorted(asking.items(), key=lambda item: -item[0][0]):
            step = self.rows(length + wanted.budget)
            for start in range(0, len(numbers), step):
                part = numbers[start : start + step]
                prompts = torch.tensor([contexts[number] for number in part])
                for number, ids in zip(part, self.generate(prompts, wanted.budget).tolist(), strict=True):
                    answer = self.writer.tokenizer.decode(
                        ids[: ids.index(self.stop_id)] if self.stop_id in ids else ids
                    )
                    found[number] = before_stops(answer, wanted.until)
                done(len(part))
            self.longest = max(self.longest, length + wanted.budget)
        return [found[number] for number in range(len(requests))]

    def generation(self, settings: Mapping[str, Any]) -> Generation:
        """Read a task's settings of generation.

        Raises: ConfigError with a line for every one that greedy generation cannot follow.
        """
        faults = [
            f"generation_kwargs.{name}={value}: not a setting of greedy generation; take it out of the task"
            for name, value in settings.items()
            if name not in GREEDY_KEYS + BUDGET_KEYS
        ]
        sampled = settings.get("do_sample")
        if sampled or (sampled is None and settings.get("temperature")):
            rule = "answers are greedy here; set do_sample: false in the task"
            faults.append(f"generation_kwargs.do_sample={sampled}, temperature={settings.get('temperature')}: {rule}")
        budget = next((int(settings[name]) for name in BUDGET_KEYS if settings.get(name)), self.default_budget)
        if budget >= self.max_length:
            rule = f"answers of {budget} tokens leave no room for a context; raise it, or lower max_gen_toks"
            faults.append(f"--max_length={self.max_length}: {rule}")
        if faults:
            raise ConfigError(*faults)
        until = settings.get("until") or []
        return Generation(tuple([until] if isinstance(until, str) else until), budget)

    def check_ids(self, ids: Iterator[int]) -> None:
        """Refuse a tokenizer with more tokens than the model knows.

        Raises: DataError.
        """
        size = self.decoder.cfg.vocab_size
        if max(ids, default=0) >= size:
            raise DataError(f"tokenizer.json: has more ids than the model's {size}; give the model's own tokenizer")


def by_length(texts: Sequence[tuple[int, ...]], rows: Runs) -> Iterator[list[tuple[int, ...]]]:
    """Gather texts of one length, longest first.

    Example:
        >>> list(by_length([(1,), (2, 3), (4,), (5,)], lambda length: 2))
        [[(2, 3)], [(1,), (4,)], [(5,)]]
    """
    lengths: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        lengths.setdefault(len(text), []).append(text)
    for length, alike in sorted(lengths.items(), reverse=True):
        step = rows(length)
        yield from (alike[start : start + step] for start in range(0, len(alike), step))


@torch.no_grad()
def token_scores(
    decoder: Decoder, tokens: Tensor, asked: Sequence[tuple[int, tuple[int, ...]]]
) -> list[tuple[float, bool]]:
    """Score what is asked of rows: the ids that follow a row's last tokens, the last of them after its end.

    Shapes: tokens int64 (B, T); asked: (row, ids) each -> the sum of ln p, and whether all ids are the most likely.
    """
    n_tokens = tokens.shape[1]
    rows = torch.tensor([row for row, ids in asked for _ in ids], device=tokens.device)
    places = torch.tensor([n_tokens - len(ids) + k for _, ids in asked for k in range(len(ids))], device=tokens.device)
    wanted = torch.tensor([token for _, ids in asked for token in ids], device=tokens.device)
    hidden = last_block(decoder, tokens)
    nats = torch.zeros(len(wanted), dtype=torch.float64, device=tokens.device)
    likeliest = torch.zeros(len(wanted), dtype=torch.bool, device=tokens.device)
    step = max(1, BLOCK_LOGITS // decoder.cfg.vocab_size)  # of the head at a time
    for start in range(0, len(wanted), step):
        part = slice(start, start + step)
        logits = decoder.head(decoder.norm(hidden[rows[part], places[part]])).double()
        nats[part] = logits.gather(1, wanted[part, None])[:, 0] - logits.logsumexp(-1)
        likeliest[part] = logits.argmax(-1) == wanted[part]
    sizes = [len(ids) for _, ids in asked]
    each = zip(torch.split(nats.cpu(), sizes), torch.split(likeliest.cpu(), sizes), strict=True)
    return [(float(values.sum()), bool(flags.all())) for values, flags in each]


def before_stops(text: str, stops: Sequence[str]) -> str:
    """Cut a text at the first stop string.

    Example:
        >>> before_stops("42. Next: 7", ("Next", ".")), before_stops("42", ("",))
        ('42', '42')
    """
    places = [text.find(stop) for stop in stops if stop]
    return text[: min((place for place in places if place >= 0), default=len(text))]
