"""Asking as in a chat: the template of the model, or one of a file, around a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eval.engine.cases import Writer
from eval.engine.command import CellOptions
from eval.engine.subject import Subject
from lab.data.chat import around
from lab.errors import ConfigError, DataError
from lab.schema import PathText


@dataclass(frozen=True, kw_only=True)
class ChatOptions(CellOptions):
    """Options of measurements that can ask as in a chat."""

    apply_chat_template: bool = False
    """Ask as in a chat, with the template of the run's conversations or of the Hugging Face folder."""
    chat_template: PathText | None = None
    """Ask as in a chat, with the Jinja template of a file, as those of eval/papers/templates."""

    @property
    def chat(self) -> str | bool:
        """What is asked with, in rows: the file, or whether it is the model's own."""
        return self.chat_template or self.apply_chat_template

    def template(self, subject: Subject) -> str | None:
        """Read the template; None for none.

        Raises: DataError for a file that cannot be read; ConfigError for a model that has none of its own.
        """
        if self.chat_template is not None:
            try:
                return Path(self.chat_template).read_text("utf-8")
            except (OSError, ValueError) as error:
                rule = f"cannot be read ({getattr(error, 'strerror', None) or error})"
                raise DataError(f"--chat_template={self.chat_template}: {rule}; give a file in Jinja") from error
        if self.apply_chat_template and subject.model.chat_template is None:
            rule = f"{subject.model.name} has none, as it was trained on no conversations"
            raise ConfigError(f"--apply_chat_template: {rule}; give a file by --chat_template")
        return subject.model.chat_template if self.apply_chat_template else None

    def writer(self, subject: Subject) -> Writer:
        """Build what encodes prompts. In runs a template's special tokens are text, as they were in training."""
        template = self.template(subject)
        if template is None:
            return Writer(subject.tokenizer)
        return Writer(subject.tokenizer, around(template), special=subject.model.experiment is None)
