"""Options of eval.harness, and the short forms of its command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.common.command import CellOptions
from lab.positions.methods import DISTANCE_METHODS
from lab.schema import NonNegative, Positive, field_docs

BUDGET = 256  # tokens of an answer where a task does not say, the harness's own number


@dataclass(frozen=True, kw_only=True)
class HarnessOptions(CellOptions):
    """Options of this command."""

    tasks: str
    """Names of tasks, tags or groups, with commas between them."""
    include_path: str | None = None
    """Folder with YAML files of tasks of your own."""
    limit: Positive | None = None
    """Documents of each task, the first ones; left out, all."""
    num_fewshot: NonNegative | None = None
    """Examples before each question; left out, as many as the task says."""
    max_length: Positive | None = None
    """Most tokens of a text, answer included, beyond which contexts lose their beginning; left out, the training
    window."""
    max_gen_toks: Positive = BUDGET
    """Most tokens of an answer, where a task does not say."""
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
        if self.max_length == 1:
            faults.append("max_length=1: must be >= 2, a token predicts the next; raise it")
        return faults


def spell_out(words: Sequence[str]) -> list[str]:
    """Write --distance and the parameters of its method in full.

    Example:
        >>> spell_out(["runs/x", "--distance", "string", "--shift=8", "--limit", "5"])
        ['runs/x', '--position.distance.method', 'string', '--position.distance.shift=8', '--limit', '5']
    """
    following = [*words, "-"][1:]
    parts = [word.partition("=") for word in words]
    named = [
        value if sign else after
        for (key, sign, value), after in zip(parts, following, strict=True)
        if key == "--distance"
    ]
    method = DISTANCE_METHODS.get(named[0]) if named else None
    own = {"distance": "method"} if named else {}
    own |= {name: name for name in (field_docs(method) if method else ())}
    return [
        f"--position.distance.{own[key[2:]]}{sign}{value}" if key[:2] == "--" and key[2:] in own else key + sign + value
        for key, sign, value in parts
    ]
