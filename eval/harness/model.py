"""A decoder of the lab as a model class of lm-evaluation-harness.

A continuation y_1 .. y_m after a context x_1 .. x_n scores

    sum_i ln p(y_i | x_1 .. x_n y_1 .. y_(i-1)),    greedy where every y_i is the most likely token

and a text is a continuation of the token that begins a document. A text of more than max_length tokens is scored in the
harness's rolling windows, each token once. Where a context does not fit, its beginning is cut off; before an answer
there must be room for the longest one. The harness's class `hf` does the same but for one thing: unless
add_bos_token=False, it puts the token that begins a document twice before a text, and scores the second (its issue
3333).

The harness's cache (its use_cache) holds every finished request twice: what it came to, and what it took.

Source: lm-evaluation-harness 0.4.13, docs/model_guide.md and lm_eval/api/model.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from tqdm import tqdm

from eval.common.subject import Subject
from eval.harness.answers import before_stops, ends_at, read_generation
from eval.harness.encoding import Encoder, Ids
from eval.harness.scoring import Asked, Texts, batches, token_scores
from lab.errors import ConfigError, DataError, MissingPackage
from lab.model.generation.generate import greedy

COST = "cost"  # names, in the cache, what a request took


class Cost(NamedTuple):
    """What a request took.

    `tokens` is the length of the longest text that was read for it, `cut` whether its context lost its beginning;
    requests that ran side by side share their seconds.
    """

    tokens: int
    cut: bool
    seconds: float


class LabModel:
    """Scores and answers; `harness_model` joins it with the harness's TemplateLM, which splits and encodes pairs."""

    cache_hook: Any

    def __init__(
        self, subject: Subject, encoder: Encoder, max_length: int, rows: Callable[[int], int], budget: int, chat: Any
    ) -> None:
        """Take texts of `max_length` tokens, `rows(length)` side by side, and answers of `budget` tokens."""
        super().__init__()
        self.subject, self.encoder, self.chat = subject, encoder, chat
        self.max_length, self.rows, self.budget = max_length, rows, budget

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document; where there is none, the one that begins it."""
        return (*self.encoder.stop_ids, self.encoder.prefix_id)[0]

    @property
    def prefix_token_id(self) -> int:
        """The token that an empty context stands for."""
        return self.encoder.prefix_id

    @property
    def tokenizer_name(self) -> str:
        """Name of the folder with the chat template."""
        return str(self.chat.name_or_path) if self.chat else ""

    def apply_chat_template(self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Write messages as one text, at whose end an answer begins, or else the last message goes on."""
        ends = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        text: str = self.chat.apply_chat_template(list(chat_history), tokenize=False, **ends)
        return text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> Ids:
        """Encode a context, or, without special tokens, the continuation of an empty one.

        Raises: DataError for a continuation without tokens.
        """
        if add_special_tokens is None:
            return self.encoder.encode(string)
        return self.encoder.bare(string) or refuse_empty(string)

    def _loglikelihood_tokens(self, requests: Sequence[tuple[tuple[str, str], Ids, Ids]], **_: Any) -> list[Any]:
        parts = [[self.continuation(before, after, pair[1])] for pair, before, after in requests]
        return self.run("loglikelihood", [pair for pair, _, _ in requests], parts)

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """Score whole texts, each on its own."""
        texts = [request.args for request in requests]
        return self.run("loglikelihood_rolling", texts, [self.windows(*text) for text in texts])

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Answer contexts.

        Raises: ConfigError for settings of sampling, and for answers that leave no room for a context.
        """
        asked = [request.args for request in requests]
        return self.run("generate_until", asked, [[self.prompt(*each)] for each in asked])

    def continuation(self, before: Ids, after: Ids, text: str = "") -> Asked:
        """Cut a context so that its continuation can be scored.

        Raises: ConfigError for a continuation that is longer than the window, DataError for one without tokens.
        """
        if not after:
            refuse_empty(text)
        if len(after) > self.max_length:
            raise ConfigError(f"--max_length={self.max_length}: a continuation takes {len(after)} tokens; raise it")
        whole = (before or [self.prefix_token_id]) + after
        ids = whole[-(self.max_length + 1) :]
        return Asked(tuple(ids[:-1]), len(whole) > len(ids), targets=tuple(after))

    def windows(self, text: str) -> list[Asked]:
        """Cut a text to be scored into windows."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        ids = self.encoder.bare(text)
        windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
        return [self.continuation(*make_disjoint_window(window)) for window in windows]

    def prompt(self, context: str, settings: Mapping[str, Any]) -> Asked:
        """Cut a context so that the longest answer fits after it.

        Raises: ConfigError for an answer that leaves no room, or settings of sampling.
        """
        wanted = read_generation(settings, self.budget, self.encoder.end_text)
        room = self.max_length - wanted.budget
        if room < 1:
            rule = f"answers of {wanted.budget} tokens leave no room for a context; raise it, or lower max_gen_toks"
            raise ConfigError(f"--max_length={self.max_length}: {rule}")
        ids = self.encoder.encode(context) or [self.prefix_token_id]
        return Asked(tuple(ids[-room:]), len(ids) > room, generation=wanted)

    def run(self, kind: str, arguments: Sequence[Any], parts: Sequence[Sequence[Asked]]) -> list[Any]:
        """Run requests, each of some parts, keep it as soon as all are done, and return what the requests came to."""
        asked = [(number, part) for number, each in enumerate(parts) for part in each]
        done: list[list[tuple[Any, Cost]]] = [[] for _ in parts]
        values = {number: self.keep(kind, arguments[number], []) for number, each in enumerate(parts) if not each}
        with tqdm(total=len(asked), desc=kind, unit="pass") as bar:
            for batch in batches([part for _, part in asked], self.rows):
                for place, outcome in self.compute(batch, [part for _, part in asked]):
                    number = asked[place][0]
                    done[number].append(outcome)
                    if len(done[number]) == len(parts[number]):
                        values[number] = self.keep(kind, arguments[number], done[number])
                    bar.update()
        return [values[number] for number in range(len(parts))]

    def keep(self, kind: str, arguments: Any, outcomes: Sequence[tuple[Any, Cost]]) -> Any:
        """Put a finished request into the harness's cache and return its value, which is put there last."""
        costs = [cost for _, cost in outcomes]
        tokens, cut = max((cost.tokens for cost in costs), default=0), any(cost.cut for cost in costs)
        self.cache_hook.add_partial(COST, arguments, (tokens, cut, sum(cost.seconds for cost in costs)))
        rolling = kind == "loglikelihood_rolling"
        value = sum((nats for (nats, _), _ in outcomes), 0.0) if rolling else outcomes[0][0]
        self.cache_hook.add_partial(kind, arguments, value)
        return value

    def compute(self, batch: Texts, asked: Sequence[Asked]) -> Iterator[tuple[int, tuple[Any, Cost]]]:
        """Score or answer texts of one length; yield the number of each request and its outcome."""
        started, decoder = time.perf_counter(), self.subject.model.decoder
        tokens = torch.tensor(list(batch), device=self.subject.device)
        rows = [(row, number) for row, numbers in enumerate(batch.values()) for number in numbers]
        generation, length = asked[rows[0][1]].generation, tokens.shape[1]
        with self.subject.computing():
            if generation is None:
                values: list[Any] = token_scores(
                    decoder, tokens, [(row, asked[number].targets) for row, number in rows]
                )
            else:
                ended = ends_at(self.encoder, generation.stops)
                ids = greedy(decoder, tokens, generation.budget, self.subject.stop_id, ended=ended).tolist()
                values = [before_stops(self.encoder.decode(ids[row]), generation.stops) for row, _ in rows]
                length += len(ids[0])
        seconds = (time.perf_counter() - started) / len(rows)
        for (_, number), value in zip(rows, values, strict=True):
            yield number, (value, Cost(length, asked[number].cut, seconds))

    def costs(self, arguments: Iterable[Any]) -> list[Cost]:
        """Look up what finished requests took, each once."""
        from lm_eval.api.model import hash_args

        names = dict.fromkeys(hash_args(COST, each) for each in arguments)
        return [Cost(*self.cache_hook.dbdict[name]) for name in names]


def harness_model(*arguments: Any) -> Any:
    """Make a LabModel that the harness takes as its own."""
    from lm_eval.api.model import TemplateLM

    return type("LabModel", (LabModel, TemplateLM), {})(*arguments)


def chat_tokenizer(folder: Path) -> Any:
    """Open the tokenizer of a Hugging Face folder that has a chat template.

    Raises: MissingPackage; ConfigError for a folder that has none.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingPackage("transformers", "--apply_chat_template", "hf") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError):
        tokenizer = None
    if tokenizer is None or not tokenizer.chat_template:
        fault = "has no chat template (chat_template.jinja); leave it out, or use a model that was trained on chats"
        raise ConfigError(f"--apply_chat_template: {folder} {fault}")
    return tokenizer


def refuse_empty(continuation: str) -> NoReturn:
    """Refuse a continuation of which the tokenizer leaves nothing.

    Raises: DataError.
    """
    fault = "the continuation has no token of its own in this tokenizer"
    raise DataError(f"{continuation[:20]!r}: {fault}; change the task")
