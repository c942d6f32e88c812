"""Answers to a harness's requests: greedy, up to a task's first stop string, which is left out.

A row ends as soon as its text holds a stop string, or the name of the token that ends a document, or it says such a
token. Since a stop string of b bytes is spelled by at most b tokens that say something, and has its end in the newest
one, it is looked for in the last tokens alone; what is found there is looked for again in the whole answer. An answer
is cut at one stop string after the other, in the task's order, which makes a difference where two of them overlap.

Source: lm-evaluation-harness 0.4.13, postprocess_generated_text in lm_eval/models/utils.py, for the order of cuts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eval.harness.encoding import Encoder, Ids
from eval.harness.scoring import Outcome, Outcomes, Runs
from lab.errors import ConfigError

GREEDY_KEYS = ("until", "do_sample", "temperature", "top_p", "top_k", "num_beams")  # all but the first idle when greedy
BUDGET_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # one meaning, first one taken
SILENT = 4  # tokens within a stop string that say nothing, as special ones

Ended = Callable[[Tensor], Tensor]
Generate = Callable[[Tensor, int, Ended], Tensor]


class Generation(NamedTuple):
    """What a task asks of an answer."""

    until: tuple[str, ...]
    budget: int


@dataclass(frozen=True)
class Speaker:
    """A decoder that answers."""

    encoder: Encoder
    generate: Generate
    rows: Runs
    default_budget: int

    def answers(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Outcomes]:
        """Continue contexts, and give out each batch's answers as soon as they are known.

        Raises: ConfigError for settings of sampling, and for answers that leave no room for a context.
        """
        prompts: list[Ids] = []
        cut: list[bool] = []
        alike: dict[tuple[int, Generation], list[int]] = {}
        for number, (context, settings) in enumerate(requests):
            wanted = read_generation(settings, self.default_budget)
            ids, was_cut = self.encoder.prompt(context, wanted.budget)
            prompts.append(ids)
            cut.append(was_cut)
            alike.setdefault((len(ids), wanted), []).append(number)
        for (length, wanted), numbers in sorted(alike.items(), key=lambda item: -item[0][0]):
            step = self.rows(length + wanted.budget)
            for start in range(0, len(numbers), step):
                part = numbers[start : start + step]
                started = time.perf_counter()
                said = self.say([prompts[number] for number in part], wanted)
                seconds = (time.perf_counter() - started) / len(part)
                yield {n: Outcome(text, length + k, cut[n], seconds) for n, (text, k) in zip(part, said, strict=True)}

    def say(self, prompts: Sequence[Ids], wanted: Generation) -> list[tuple[str, int]]:
        """Answer prompts of one length: each one's text, and how many tokens were generated for all of them."""
        stops = [stop for stop in (*wanted.until, self.encoder.end_text) if stop]
        answers = self.generate(torch.tensor(prompts), wanted.budget, self.ended(stops))
        texts = [before_stops(self.encoder.decode(ids), stops) for ids in answers.tolist()]
        return [(text, answers.shape[1]) for text in texts]

    def ended(self, stops: Sequence[str]) -> Ended:
        """Make what tells which answers are at their end."""
        reach = max((len(stop.encode()) for stop in stops), default=0) + SILENT

        def holds_stop(ids: Ids) -> bool:
            text = self.encoder.decode(ids)
            return any(stop in text for stop in stops)

        def ended(answers: Tensor) -> Tensor:
            rows = answers.tolist()
            return torch.tensor(
                [ids[-1] in self.encoder.stop_ids or (holds_stop(ids[-reach:]) and holds_stop(ids)) for ids in rows]
            )

        return ended


def read_generation(settings: Mapping[str, Any], default_budget: int) -> Generation:
    """Read a task's settings of generation.

    Raises: ConfigError with a line for every one that greedy generation cannot follow.
    Example:
        >>> read_generation({"until": ["Q:"], "do_sample": False, "temperature": 0.7}, 256)
        Generation(until=('Q:',), budget=256)
    """
    beams = settings.get("num_beams", 1)
    faults = [
        f"generation_kwargs.{name}={value}: not a setting of greedy generation; take it out of the task"
        for name, value in settings.items()
        if name not in GREEDY_KEYS + BUDGET_KEYS or (name == "num_beams" and beams != 1)
    ]
    sampled = settings.get("do_sample")
    if sampled or (sampled is None and settings.get("temperature")):
        rule = "answers are greedy here; set do_sample: false in the task"
        faults.append(f"generation_kwargs.do_sample={sampled}, temperature={settings.get('temperature')}: {rule}")
    if faults:
        raise ConfigError(*faults)
    budget = next((int(settings[name]) for name in BUDGET_KEYS if settings.get(name)), default_budget)
    until = settings.get("until") or []
    return Generation(tuple([until] if isinstance(until, str) else until), budget)


def before_stops(text: str, stops: Sequence[str]) -> str:
    """Cut a text at one stop string after the other.

    Example:
        >>> before_stops("42. Next: 7", ("Next", ".")), before_stops("42", ("x",)), before_stops("abc", ("bc", "ab"))
        ('42', '42', 'a')
    """
    for stop in stops:
        text = text.split(stop, maxsplit=1)[0]
    return text
