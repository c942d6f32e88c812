"""Options of eval.harness, the short form of a distance method, and the parameters of one that is only named.

These follow from the training window and the texts' length, as in eval.methods (eval/common/method_settings.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.common.command import CellOptions, Request
from eval.common.distance_methods import DERIVED
from eval.common.method_settings import setting
from lab.config import load_experiment
from lab.model.huggingface.config import read_settings
from lab.positions.methods import DISTANCE_METHODS
from lab.schema import Length, NonNegative, PathText, Positive, field_docs
from lab.source.place import CONFIG, find_place

DISTANCE = "position.distance."


@dataclass(frozen=True, kw_only=True)
class HarnessOptions(CellOptions):
    """Options of this command."""

    tasks: str
    """Names of tasks, tags or groups, with commas between them."""
    include_path: PathText | None = None
    """Folder with YAML files of tasks of your own."""
    run_own_code: bool = False
    """Run the Python code (!function) that YAML files of --include_path name; read it first."""
    limit: Positive | None = None
    """Documents of each task, the first ones; left out, all."""
    num_fewshot: NonNegative | None = None
    """Examples before each question; left out, as many as the task sets."""
    max_length: Length | None = None
    """Most tokens of a text, answer included, beyond which contexts lose their beginning; left out, the training
    window."""
    max_gen_toks: Length = 256
    """Most tokens of an answer, where a task sets none."""
    apply_chat_template: bool = False
    """Ask as in a chat, with the template of a Hugging Face folder; earlier examples become turns of it."""
    confirm_run_unsafe_code: bool = False
    """Run programs that the model writes, as HumanEval does; do this in a sandbox alone."""

    @property
    def names(self) -> list[str]:
        """The names in --tasks, each once."""
        return list(dict.fromkeys(name.strip() for name in self.tasks.split(",")))

    def rules(self) -> list[str]:
        """Refuse an empty name, and windows without a pair of tokens."""
        faults = [] if all(self.names) else [f"tasks={self.tasks}: has an empty name; take a comma out"]
        short = ["max_length=1: must be >= 2, a token predicts the next; raise it"]
        return faults + (short if self.max_length == 1 else [])


def spell_out(words: Sequence[str]) -> list[str]:
    """Write --distance and the parameters of its method in full.

    Example:
        >>> spell_out(["runs/x", "--distance", "string", "--shift=8", "--limit", "5"])
        ['runs/x', '--position.distance.method', 'string', '--position.distance.shift=8', '--limit', '5']
    """
    parts = [word.partition("=") for word in words]
    named = [value or after for (key, _, value), after in zip(parts, [*words[1:], ""]) if key == "--distance"]
    method = DISTANCE_METHODS.get(named[0]) if named else None
    own = {"--distance": "method"} if named else {}
    own |= {f"--{name}": name for name in (field_docs(method) if method else ())}
    return [f"--{DISTANCE}{own[key]}{sign}{value}" if key in own else key + sign + value for key, sign, value in parts]


def with_parameters(request: Request) -> Request:
    """Fill in the parameters of a distance method that is only named; the model's weights are not read.

    Raises: LabError for a model that cannot be opened.
    """
    given = [key for key in request.overrides if key.startswith(DISTANCE)]
    method = request.overrides.get(f"{DISTANCE}method")
    if len(given) != 1 or method not in DERIVED:
        return request
    place = find_place(request.model)
    if place.is_hugging_face:
        train_len = int(read_settings(place.folder)["max_position_embeddings"])
    else:
        train_len = load_experiment(place.home / CONFIG).data.window
    derived = setting(method, train_len, request.options.max_length or train_len).distance
    return request._replace(overrides={**request.overrides, **{DISTANCE + name: derived[name] for name in derived}})
