"""Chat templates: Jinja, by which the turns of a conversation become one text, as in a tokenizer_config.json.

A template is rendered with `messages`, turns of `role` (system, user or assistant) and `content`, and with
`add_generation_prompt`, whether an answer is to follow. transformers' `apply_chat_template` renders the same text, but
for `bos_token` and `eos_token`, which are empty here: the tokenizer adds what begins a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from lab.errors import ConfigError, first_line

USER_ASSISTANT = (
    r"{% for turn in messages %}{{ turn.role.upper() + ': ' + turn.content.strip() + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
ASKED = "\x02"  # stands for a question
Turn = dict[str, str]


@lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # here, as it takes a tenth of a second

    loops = "jinja2.ext.loopcontrols"
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loops]).from_string(template)


def render(template: str, turns: Sequence[Turn], *, answer: bool = False) -> str:
    r"""Write turns as one text; with `answer`, up to where the assistant's next turn begins.

    Raises: ConfigError.
    Example:
        >>> render(USER_ASSISTANT, [{"role": "user", "content": "Hi"}], answer=True)
        'USER: Hi\nASSISTANT:'
    """
    from jinja2 import TemplateError

    try:
        return str(compiled(template).render(messages=list(turns), add_generation_prompt=answer))
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, MemoryError, RecursionError) as error:
        raise ConfigError(f"chat template: cannot be rendered ({first_line(error)}); correct its Jinja") from error


def around(template: str) -> tuple[str, str]:
    r"""Return what a template writes before and after a single question.

    Raises: ConfigError.
    Example:
        >>> around(USER_ASSISTANT)
        ('USER: ', '\nASSISTANT:')
    """
    before, asked, after = render(template, [{"role": "user", "content": ASKED}], answer=True).partition(ASKED)
    if not asked:
        raise ConfigError("chat template: leaves out what a user says; correct its Jinja")
    return before, after
