"""A decoder of the lab as a model class of lm-evaluation-harness.

A continuation y_1 .. y_m after a context x_1 .. x_n scores

    sum_i ln p(y_i | x_1 .. x_n y_1 .. y_(i-1)),    greedy where every y_i is the most likely token

and a text is a continuation of the token that begins a document, in the harness's rolling windows of max_length tokens.
Where a context does not fit, its beginning or its middle is cut out; before an answer there must be room for the
longest one. The harness's class `hf` does the same, with the beginning alone, but for one thing: unless
add_bos_token=False, it puts the token that begins a document twice before a text, and scores the second (its issue
3333).

Source: lm-evaluation-harness 0.4.13, docs/model_guide.md and lm_eval/api/model.py; for the middle, `pred.py` of
LongBench (arXiv:2308.14508) and `truncate_input` of STRING's InfiniteBench (arXiv:2410.18745): the first and the last
half of the tokens that fit, rounded down. They leave no room for the answer, and encode the decoded halves again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eval.engine.subject import Subject
from eval.harness.encoding import Encoder, Ids, chat_tokenizer
from eval.harness.options import HarnessOptions
from eval.harness.scoring import TokenRequest, batches, token_scores
from lab.bars import Bar
from lab.errors import ConfigError
from lab.model.generate import greedy

READ = "read"  # key, in the harness's cache, of the tokens read for a request
MOST_TOKENS = 4096  # of a text, where the training window is not known
FOLLOWED = ("until", "max_gen_toks", "temperature", "top_p", "top_k")  # the last three change no greedy answer
IDLE = (("do_sample", False), ("num_beams", 1))


class LabModel:
    """Scores and answers; `harness_model` joins it with the harness's TemplateLM, which splits and encodes pairs."""

    cache_hook: Any
    eot_token_id = prefix_token_id = 0
    tokenizer_name = ""

    def __init__(self, subject: Subject, encoder: Encoder, options: HarnessOptions, chat: Any = None) -> None:
        """Store the options; `chat` is a tokenizer with a chat template."""
        super().__init__()
        self.subject, self.encoder, self.options, self.chat = subject, encoder, options, chat
        self.max_length = options.max_length or subject.model.train_len or MOST_TOKENS
        self.prefix_token_id, self.eot_token_id = encoder.prefix_id, [*encoder.stop_ids, encoder.prefix_id][0]
        self.tokenizer_name = str(getattr(chat, "name_or_path", ""))

    def apply_chat_template(self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Format messages as one text that ends where an answer begins, or where the last message continues."""
        ends = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        text: str = self.chat.apply_chat_template(list(chat_history), tokenize=False, **ends)
        return text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> Ids:
        """Encode a context, or, without special tokens, the continuation of an empty one."""
        return self.encoder.encode(string, bare=add_special_tokens is False)

    def _loglikelihood_tokens(self, requests: Sequence[tuple[tuple[str, str], Ids, Ids]], **_: Any) -> list[Any]:
        parts = [[self.continuation(before, after)] for _, before, after in requests]
        return self.run("loglikelihood", [pair for pair, _, _ in requests], parts)

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """Score whole texts, each on its own."""
        return self.run("loglikelihood_rolling", [r.args for r in requests], [self.windows(*r.args) for r in requests])

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Answer contexts greedily."""
        return self.run("generate_until", [r.args for r in requests], [[self.prompt(*r.args)] for r in requests])

    def continuation(self, before: Ids, after: Ids) -> TokenRequest:
        """Cut a context so that its continuation can be scored.

        Raises: ConfigError for a continuation that is longer than the window, or empty.
        """
        if not 0 < len(after) <= self.max_length:
            rule = f"must hold continuations, of 1 token or more; one has {len(after)}; change it, or the task"
            raise ConfigError(f"--max_length={self.max_length}: {rule}")
        before = before or [self.prefix_token_id]
        kept = self.kept(before, self.max_length + 1 - len(after))  # the last token is only predicted
        return TokenRequest((*kept, *after[:-1]), len(before) > len(kept), tuple(after))

    def kept(self, ids: Ids, room: int) -> Ids:
        """Return the tokens of a context that are read where `room` of them fit, at least one."""
        if len(ids) <= room:
            return ids
        if self.options.truncate == "left" or room == 1:
            return ids[-room:]
        return ids[: room // 2] + ids[-(room // 2) :]

    def windows(self, text: str) -> list[TokenRequest]:
        """Cut a text to be scored into windows."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        ids = self.encoder.encode(text, bare=True)
        windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
        return [self.continuation(*make_disjoint_window(window)) for window in windows]

    def prompt(self, context: str, settings: Mapping[str, Any]) -> TokenRequest:
        """Cut a context so that the longest answer fits after it.

        Raises: ConfigError for an answer that leaves no room, and with a line for each setting that is not followed.
        """
        from lm_eval.models.utils import normalize_gen_kwargs

        given = {name: value for name, value in settings.items() if value is not None}
        wanted = dict(normalize_gen_kwargs(given, self.options.max_gen_toks))
        budget = wanted["max_gen_toks"] or self.options.max_gen_toks
        refused = [pair for pair in wanted.items() if pair[0] not in FOLLOWED and pair not in IDLE]
        remedy = "remove it from the task, or set do_sample: false"
        faults = [f"generation_kwargs.{name}={value}: answers are greedy; {remedy}" for name, value in refused]
        if budget >= self.max_length:
            rule = f"must exceed answers, of {budget} tokens; raise it, or lower max_gen_toks"
            faults.append(f"--max_length={self.max_length}: {rule}")
        if faults:
            raise ConfigError(*faults)
        ids = self.encoder.encode(context) or [self.prefix_token_id]
        inputs = self.kept(ids, self.max_length - budget)
        stops = tuple(stop for stop in (*wanted["until"], self.encoder.end_text) if stop)
        return TokenRequest(tuple(inputs), len(ids) > len(inputs), budget=budget, stops=stops)

    def run(self, kind: str, arguments: Sequence[Any], parts: Sequence[Sequence[TokenRequest]]) -> list[Any]:
        """Run requests, each of some parts, and put each into the harness's cache as soon as all are done."""
        owners = [number for number, each in enumerate(parts) for _ in each]
        done: list[list[tuple[Any, int]]] = [[] for _ in parts]
        values: list[Any] = [0.0] * len(parts)  # what a text without tokens scores
        outcomes = self.outcomes([part for each in parts for part in each])
        for place, value, n_tokens in Bar(outcomes, desc=kind, total=len(owners)):
            number = owners[place]
            done[number].append((value, n_tokens))
            if len(done[number]) == len(parts[number]):
                found, lengths = zip(*done[number], strict=True)
                values[number] = sum(nats for nats, _ in found) if kind == "loglikelihood_rolling" else value
                cut = any(part.cut for part in parts[number])
                self.cache_hook.add_partial(READ, arguments[number], (max(lengths), cut))
                self.cache_hook.add_partial(kind, arguments[number], values[number])
        return values

    def outcomes(self, asked: Sequence[TokenRequest]) -> Iterator[tuple[int, Any, int]]:
        """Run requests of one length side by side; yield each one's place, its value, and the tokens of its text."""
        for batch in batches(asked, self.options.rows):
            tokens = torch.tensor(list(batch), device=self.subject.device)
            rows = [(row, place) for row, places in enumerate(batch.values()) for place in places]
            wanted, length = asked[rows[0][1]], tokens.shape[1]
            with self.subject.computing():
                if wanted.budget:
                    ended = partial(self.encoder.ended, stops=wanted.stops)
                    ids = greedy(self.subject.model.decoder, tokens, wanted.budget, self.subject.stop_id, ended=ended)
                    length, answers = length + ids.shape[1], ids.tolist()
                    values: list[Any] = [self.encoder.decode(answers[row], wanted.stops) for row, _ in rows]
                else:
                    targets = [(row, asked[place].targets) for row, place in rows]
                    values = token_scores(self.subject.model.decoder, tokens, targets)
            for (_, place), value in zip(rows, values, strict=True):
                yield place, value, length

    def reads(self, tests: Iterable[Mapping[str, Any]]) -> list[tuple[int, bool]]:
        """Look up the tokens of the longest text read for each request of some tests, and whether it was cut."""
        from lm_eval.api.model import hash_args

        names = dict.fromkeys(hash_args(READ, each) for test in tests for each in test["arguments"])
        return [self.cache_hook.dbdict.get(name, (0, False)) for name in names]


def harness_model(subject: Subject, folder: Path, options: HarnessOptions) -> Any:
    """Build a LabModel that is a model class of the harness too, from a model opened in a folder.

    Raises: LabError.
    """
    from lm_eval.api.model import TemplateLM

    return type("LabModel", (LabModel, TemplateLM), {})(subject, *parts_of(subject, folder, options))


def parts_of(subject: Subject, folder: Path, options: HarnessOptions) -> tuple[Encoder, HarnessOptions, Any]:
    """Build what a LabModel takes beside its subject.

    Raises: LabError.
    """
    chat = chat_tokenizer(folder) if options.apply_chat_template else None
    return Encoder(subject, folder, templated=chat is not None), options, chat
