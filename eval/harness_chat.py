"""Questions as a chat: the template that a Hugging Face folder brings, written as transformers writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.errors import ConfigError, MissingPackage


class Chat:
    """The chat template of a folder."""

    def __init__(self, folder: Path) -> None:
        """Read the template.

        Raises: MissingPackage; ConfigError for a folder that has none.
        """
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise MissingPackage("transformers", "--apply_chat_template", "hf") from error
        rule = "has no chat template (chat_template.jinja); leave it out, or use a model that was trained on chats"
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"--apply_chat_template: {folder} {rule}") from error
        if not self.tokenizer.chat_template:
            raise ConfigError(f"--apply_chat_template: {folder} {rule}")
        self.name = str(folder)

    def write(self, messages: Sequence[dict[str, str]], asks: bool) -> str:
        """Write messages as one text; `asks` opens an answer after them, else the last message begins one."""
        text: str = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=asks, continue_final_message=not asks
        )
        return text
