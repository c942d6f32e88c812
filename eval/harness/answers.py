"""Answers: what a task asks of them, where they end, and what is left of them.

A row ends with a token that ends a document, or as soon as its text holds a stop string or that token's name. Since a
stop string of b bytes takes at most b tokens that are text, and ends in the newest one, it is looked for in the last
tokens first, and only what is found there is looked for in the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eval.harness.encoding import Encoder, Ids
from eval.harness.scoring import Generation
from lab.errors import ConfigError

BUDGET_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
GREEDY_KEYS = (*BUDGET_KEYS, "until", "do_sample", "temperature", "top_p", "top_k", "num_beams")
SILENT = 4  # tokens within a stop string that are not text, as special ones


def read_generation(settings: Mapping[str, Any], budget: int, end_text: str = "") -> Generation:
    """Read a task's settings of generation.

    Raises: ConfigError with a line for every one that greedy generation cannot follow.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    wanted = normalize_gen_kwargs({name: value for name, value in settings.items() if value is not None}, budget)
    faults = [
        f"generation_kwargs.{name}={value}: not a setting of greedy generation; take it out of the task"
        for name, value in settings.items()
        if name not in GREEDY_KEYS or (name == "num_beams" and value != 1)
    ]
    if wanted["do_sample"]:
        given = f"generation_kwargs.do_sample={settings.get('do_sample')}, temperature={settings.get('temperature')}"
        faults.append(f"{given}: answers are greedy here; set do_sample: false in the task")
    if faults:
        raise ConfigError(*faults)
    return Generation(tuple(stop for stop in (*wanted["until"], end_text) if stop), wanted["max_gen_toks"] or budget)


def before_stops(text: str, stops: Sequence[str]) -> str:
    """Cut a text at one stop string after the other, which makes a difference where two of them overlap."""
    from lm_eval.models.utils import postprocess_generated_text

    cut: str = postprocess_generated_text(text, list(stops), None)
    return cut


def ends_at(encoder: Encoder, stops: Sequence[str]) -> Callable[[Tensor], Tensor]:
    """Make the function that finds which answers, int64 (rows, n), are at their end: bool (rows,)."""
    reach = max((len(stop.encode()) for stop in stops), default=0) + SILENT

    def holds_stop(ids: Ids) -> bool:
        text = encoder.decode(ids)
        return any(stop in text for stop in stops)

    def has_ended(ids: Ids) -> bool:
        return ids[-1] in encoder.stop_ids or (holds_stop(ids[-reach:]) and holds_stop(ids))

    return lambda answers: torch.tensor([has_ended(ids) for ids in answers.tolist()])
