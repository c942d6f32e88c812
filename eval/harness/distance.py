"""Parameters of a distance method that is only named: they follow from the training window and the texts' length.

They are those at which eval.methods compares methods (eval/common/method_settings.py has the formulas): STRING's shift
is a third of the training window, for instance. With one parameter set, nothing is derived.
"""

from __future__ import annotations

from pathlib import Path

from eval.common.command import Request
from eval.common.method_settings import setting
from lab.config import load_experiment
from lab.model.huggingface.config import read_settings
from lab.source.place import CONFIG, find_place

DERIVED = ("string", "dca", "self_extend", "rerope")
PREFIX = "position.distance."


def with_parameters(request: Request) -> Request:
    """Fill in the parameters of a distance method that is only named.

    Raises: LabError for a model that cannot be opened.
    """
    given = [key for key in request.overrides if key.startswith(PREFIX)]
    method = request.overrides.get(f"{PREFIX}method")
    if len(given) != 1 or method not in DERIVED:
        return request
    train_len = training_window(request.model)
    derived = setting(method, train_len, request.options.max_length or train_len).distance
    overrides = {f"{PREFIX}{name}": value for name, value in derived.items()}
    return request._replace(overrides={**request.overrides, **overrides})


def training_window(place: Path) -> int:
    """Read the training window of a run folder, a checkpoint in it, or a Hugging Face folder, without its weights.

    Raises: LabError.
    """
    found = find_place(place)
    if found.is_hugging_face:
        return int(read_settings(found.folder)["max_position_embeddings"])
    return load_experiment(found.home / CONFIG).data.window
