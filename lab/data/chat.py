"""Conversations as one text, by a chat template: Jinja, as in a tokenizer_config.json.

A template is rendered as by transformers' `apply_chat_template`: with `messages`, turns of `role` (system, user or
assistant) and `content`, and with `add_generation_prompt`, which is true if an answer follows. In runs `bos_token` and
`eos_token` are empty: the tokenizer adds the tokens at the start of a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from lab.core.errors import ConfigError, DataError, MissingPackage, first_line
from lab.core.types import Row

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


def render_turns(template: str, turns: Sequence[Turn], *, answer: bool = False, tokens: Tokens = NO_TOKENS) -> str:
    """Write turns as one text; with `answer`, the prompt of the assistant's next turn follows.

    `tokens` are the texts of special tokens, such as `bos_token`, by name.

    Raises: ConfigError, MissingPackage.
    """
    try:
        from transformers.utils.chat_template_utils import render_jinja_template  # not at the top: it takes a second
    except ImportError as error:
        raise MissingPackage("transformers", "chat templates", "hf") from error
    try:
        # in a sandbox, because templates come with other people's models
        # its declared types are not those that it takes and returns
        texts, _ = render_jinja_template(  # type: ignore[str-unpack]
            [[*turns]],
            chat_template=template,
            add_generation_prompt=answer,
            **tokens,  # type: ignore[arg-type]
        )
    except Exception as error:  # a template is a program, which may raise anything
        raise ConfigError(f"chat template: cannot be rendered ({first_line(error)}); correct its Jinja") from error
    return str(texts[0])


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
