"""A decoder as a model class of lm-evaluation-harness, and what each task has asked of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from eval.harness.answers import Speaker
from eval.harness.chat import Chat
from eval.harness.requests import FinishedRequests, request_hash
from eval.harness.scoring import Outcome, Outcomes, Scorer
from eval.harness.tasks import as_faults, running_code

RESAMPLES = 1000  # of a metric's documents, for the standard error of those that have no formula


@dataclass
class Responder:
    """Answers requests, each once, and remembers which task asked for which."""

    scorer: Scorer
    speaker: Speaker
    finished: FinishedRequests
    chat: Chat | None = None
    asked: dict[str, set[str]] = field(default_factory=dict)

    def respond(self, kind: str, requests: Sequence[Any]) -> list[Any]:
        """Give the values that requests of the harness come to, in their order."""
        names = [request_hash(kind, request.args) for request in requests]
        for request, name in zip(requests, names, strict=True):
            self.asked.setdefault(request.task_name, set()).add(name)
        known = self.finished.known
        waiting = {name: request.args for name, request in zip(names, requests, strict=True) if name not in known}
        order, what = list(waiting), kind.replace("_", " ")
        with tqdm(total=len(set(names)), initial=len(set(names)) - len(order), desc=what, unit="request") as bar:
            for batch in self.run(kind, list(waiting.values())):
                self.finished.keep({order[number]: outcome for number, outcome in batch.items()})
                bar.update(len(batch))
        return [known[name].value for name in names]

    def run(self, kind: str, arguments: Sequence[Any]) -> Iterator[Outcomes]:
        """Run requests of one kind."""
        if kind == "loglikelihood":
            return self.scorer.continuations(arguments)
        if kind == "loglikelihood_rolling":
            return self.scorer.texts([text for (text,) in arguments])
        assert kind == "generate_until", f"the harness asks for {kind}"
        return self.speaker.answers(arguments)

    def outcomes(self, task: str) -> list[Outcome]:
        """List what a task's requests came to."""
        return [self.finished.known[name] for name in self.asked.get(task, ())]


def as_harness_model(responder: Responder) -> Any:
    """Give a responder the harness's interface."""
    from lm_eval.api.model import LM

    class LabModel(LM):  # type: ignore[misc]
        """A decoder of the lab."""

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            return responder.respond("loglikelihood", requests)

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            return responder.respond("loglikelihood_rolling", requests)

        def generate_until(self, requests: list[Any]) -> list[str]:
            return responder.respond("generate_until", requests)

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            assert responder.chat is not None, "the harness was not asked for chats"
            return responder.chat.write(chat_history, add_generation_prompt)

        @property
        def tokenizer_name(self) -> str:
            return responder.chat.name if responder.chat else ""

    return LabModel()


def evaluate(
    responder: Responder, manager: Any, name: str, *, settings: Mapping[str, Any], seed: int, runs_code: bool
) -> dict[str, Any]:
    """Have the harness run a task, tag or group; what it prints goes to stderr.

    Raises: LabError.
    """
    from lm_eval import simple_evaluate

    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    with redirect_stdout(sys.stderr), as_faults(name, lambda: responder.asked), running_code(runs_code):
        results: dict[str, Any] = simple_evaluate(
            model=as_harness_model(responder),
            tasks=[name],
            task_manager=manager,
            bootstrap_iters=RESAMPLES,
            confirm_run_unsafe_code=runs_code,
            apply_chat_template=responder.chat is not None,
            **settings,
            **dict.fromkeys(seeds, seed),
        )
    return results
