"""Options of eval.harness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eval.engine.command import CellOptions
from lab.schema import Length, NonNegative, PathText, Positive


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
    """Number of documents of each task, from the first; left out, all."""
    num_fewshot: NonNegative | None = None
    """Examples before each question; left out, as many as the task sets."""
    max_length: Length | None = None
    """Most tokens of a text, answer included, beyond which contexts are cut; left out, the training window."""
    truncate: Literal["left", "middle"] = "left"
    """Part that a long context loses: its beginning, or its middle, as LongBench and InfiniteBench cut it."""
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
