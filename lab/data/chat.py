"""Conversations as one text, by a chat template: Jinja, as in a tokenizer_config.json.

A template is rendered as by transformers' `apply_chat_template`: with `messages`, turns of `role` (system, user or
assistant) and `content`, and with `add_generation_prompt`, which is true if an answer follows. In runs `bos_token` and
`eos_token` are empty: the tokenizer adds the tokens at the start of a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from lab.core.errors import ConfigError, DataError, first_line
from lab.core.types import Row

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.parser import Parser

USER_ASSISTANT = (
    r"{% for turn in messages %}{{ turn.role.upper() + ': ' + turn.content.strip() + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
UNSCORED = "a conversation without a response"
Turn = dict[str, str]
Tokens = Mapping[str, str]
NO_TOKENS: Tokens = MappingProxyType({})
Parts = tuple[tuple[str, bool], ...]  # consecutive parts of a text, and whether each is scored


def join_parts(parts: Parts) -> str:
    return "".join(text for text, _ in parts)


@lru_cache(maxsize=8)
def compile_template(template: str) -> Template:
    """Compile a template with the tags, functions and filter that transformers adds to Jinja."""
    from jinja2 import TemplateError, ext, nodes  # not at the top: the import takes a tenth of a second
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """The tag around the turns of an assistant; it has a scope of its own and changes no text."""

        tags = {"generation"}  # noqa: RUF012, as Jinja declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("say"), [], [], body).set_lineno(line)

        def say(self, caller: Callable[[], str]) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    # Jinja's own filter escapes characters of HTML; templates may pass its arguments by position
    def to_json(
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    # the sandbox, because templates come with other people's models
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.add_extension(Generation)
    environment.add_extension("jinja2.ext.loopcontrols")
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def render_turns(template: str, turns: Sequence[Turn], *, answer: bool = False, tokens: Tokens = NO_TOKENS) -> str:
    """Write turns as one text; with `answer`, the prompt of the assistant's next turn follows.

    `tokens` are the texts of special tokens, such as `bos_token`, by name.

    Raises: ConfigError.
    """
    # a template may change the turns of its own copies
    values = {**tokens, "messages": [dict(turn) for turn in turns], "tools": None, "documents": None}
    try:
        return compile_template(template).render(values, add_generation_prompt=answer)
    except Exception as error:  # a template is a program, which may raise anything
        raise ConfigError(f"chat template: cannot be rendered ({first_line(error)}); correct its Jinja") from error


def frame_question(template: str, tokens: Tokens = NO_TOKENS) -> tuple[str, str]:
    r"""Return what a template writes before and after a single question.

    Raises: ConfigError.
    Example:
        >>> frame_question(USER_ASSISTANT)
        ('USER: ', '\nASSISTANT:')
    """
    question = "\x02"  # which no template writes
    messages = [{"role": "user", "content": question}]
    before, found, after = render_turns(template, messages, answer=True, tokens=tokens).partition(question)
    if not found:
        raise ConfigError("chat template: omits the user's text; correct its Jinja")
    return before, after


def to_conversation(row: Row, template: str = USER_ASSISTANT) -> Parts | str:
    """Cut a row in ShareGPT's format into parts, of which the assistant's turns are scored; or return why it cannot be.

    The text that the template adds to a text which asks for an answer is scored. In the default template a response
    ends with a line break, so that a model learns to stop.

    Raises: DataError for a template by which a turn changes the text of earlier turns.
    Example:
        >>> turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
        >>> [(text.split(), scored) for text, scored in to_conversation({"conversations": turns})]
        [(['USER:', 'Hi', 'ASSISTANT:'], False), (['Hello.'], True)]
    """
    turns = row.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return "no turns in field 'conversations'"
    messages: list[Turn] = []
    texts = []  # the conversation so far, and whether what it adds to the one before is scored
    for turn in turns:
        role = ROLES.get(str(turn.get("from")))
        text = turn.get("value")
        if role is None or not isinstance(text, str):
            return "a turn without a known 'from' and a text 'value'"
        is_answer = role == "assistant" and bool(text.strip())
        if is_answer:
            texts.append((render_turns(template, messages, answer=True), False))
        messages.append({"role": role, "content": text})
        if is_answer:
            texts.append((render_turns(template, messages), True))
    texts.append((render_turns(template, messages), False))
    before = ""
    parts = []
    for after, is_scored in texts:
        if not after.startswith(before):
            raise DataError("data.corpus.template: a turn changes the text before it; write one that only adds to it")
        if after != before:
            parts.append((after.removeprefix(before), is_scored))
        before = after
    return tuple(parts) if any(is_scored for _, is_scored in parts) else UNSCORED
