"""The lab as the model `probe_lab` of lm-evaluation-harness's own command and of its simple_evaluate.

    python -m eval.harness.registered run --model probe_lab --model_args model=runs/cpu_demo,distance=string --tasks ...

    from eval.harness import registered
    registered.register()
    lm_eval.simple_evaluate(model="probe_lab", model_args="model=runs/cpu_demo,max_length=512", tasks=[...])

Arguments: model (a run folder, a checkpoint, a Hugging Face folder), distance and frequency as in --distance and
--frequency (several parameters joined by a semicolon), max_length, truncate, batch and chat_template (true or false).
eval.harness itself also resumes, gives limits, and keeps its results with the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.engine.command import Request
from eval.engine.methods import method_overrides
from eval.engine.subject import open_subject
from eval.harness.model import LabModel, parts_of
from eval.harness.options import HarnessOptions
from lab.command import read_options
from lab.source import named

NAME = "probe_lab"


def register() -> None:
    """Register the model; doing so again changes nothing."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry, register_model

    if NAME not in model_registry:
        register_model(NAME)(type("ProbeLab", (Registered, TemplateLM), {}))


class Registered(LabModel):
    """A model opened from the harness's --model_args."""

    def __init__(
        self,
        model: str,
        distance: str | None = None,
        frequency: str | None = None,
        chat_template: bool = False,
        device: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        """Open the model; the harness's batch sizes are those of requests, which `batch` replaces.

        Raises: LabError.
        """
        where = "cpu" if device == "cpu" else "auto"  # the harness's command names a GPU even where there is none
        fixed = {"tasks": NAME, "device": where, "apply_chat_template": chat_template}
        own: HarnessOptions = read_options(HarnessOptions, {**options, **fixed})
        words = {"distance": distance, "frequency": frequency}
        given = {kind: None if word is None else word.replace(";", ",") for kind, word in words.items()}
        request = Request(Path(model), own, method_overrides(Path(model), given, own.max_length), plots=False)
        subject = open_subject(request)
        super().__init__(subject, *parts_of(subject, named(request.model), own))


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    register()
    cli_evaluate()
