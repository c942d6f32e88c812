"""Chat templates: Jinja, by which the turns of a conversation become one text, as in a tokenizer_config.json.

A template is rendered with `messages`, turns of `role` (system, user or assistant) and `content`, and with
`add_generation_prompt`, whether an answer is to follow. transformers' `apply_chat_template` renders the same text, but
for `bos_token` and `eos_token`, which are empty here: the tokenizer adds what begins a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
def compiled(template: str) -> Callable[..., str]:
    """Compile a template as transformers does.

    Raises: ConfigError.
    """
    from jinja2 import TemplateError  # here, as it takes a tenth of a second
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    extensions = ["jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)

    def refuse(message: str) -> str:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse
    try:
        known = environment.from_string(template)
    except TemplateError as error:
        raise wrong(error) from error

    def written(**values: Any) -> str:
        try:
            return known.render(values)
        except (TemplateError, TypeError) as error:
            raise wrong(error) from error

    return written


def wrong(error: Exception) -> ConfigError:
    """Return the error for a template that cannot be rendered."""
    return ConfigError(f"chat template: cannot be rendered ({first_line(error)}); correct its Jinja")


def render(template: str, turns: Sequence[Turn], *, answer: bool = False) -> str:
    r"""Write turns as one text; with `answer`, up to where the assistant's next turn begins.

    Raises: ConfigError.
    Example:
        >>> render(USER_ASSISTANT, [{"role": "user", "content": "Hi"}], answer=True)
        'USER: Hi\nASSISTANT:'
    """
    return compiled(template)(messages=list(turns), add_generation_prompt=answer)


def around(template: str) -> tuple[str, str]:
    r"""Return what a template writes before and after a single question.

    Raises: ConfigError.
    Example:
        >>> around(USER_ASSISTANT)
        ('USER: ', '\nASSISTANT:')
    """
    before, asked, after = render(template, [{"role": "user", "content": ASKED}], answer=True).partition(ASKED)
    if not asked:
        raise wrong(ValueError("it leaves out what the user says"))
    return before, after
