"""Conversations in ShareGPT's format: which are kept, where long ones are cut, and which tokens are scored.

    conversation    U1 A1 | U2 A2 | U3 A3 | U4 A4        at most 5 tokens a sample, each turn one
    samples         U1 A1 U2 A2,  U3 A3 U4 A4            (a third exchange would make 6)

Source: arXiv:2401.07004, section 4.1 (SFT data), which follows the cleaning of Zheng et al. 2023 (FastChat): English
alone, none of less than 10,000 tokens, longer ones split to at most 16,384. FastChat names the language by a
classifier; here it is the share of ASCII among the letters, which Dutch or Italian pass as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter

from lab.data.config import Conversations, Corpus
from lab.data.text_files import Document, DroppedDocument, Row, usable

Parts = tuple[tuple[str, bool], ...]
Count = Callable[[Parts], int]
ROLES = {"human": "USER", "user": "USER", "gpt": "ASSISTANT", "assistant": "ASSISTANT", "system": "SYSTEM"}


def to_conversation(row: Row, source: str) -> Document | DroppedDocument:
    """Build a conversation from a row in ShareGPT's format; only the assistant's turns are scored.

    Every turn ends with a line break, which is scored after a response, so that a model learns to stop.

    Example:
        >>> turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
        >>> [(text.split(), scored) for text, scored in to_conversation({"conversations": turns}, "part").parts]
        [(['USER:', 'Hi', 'ASSISTANT:'], False), (['Hello.'], True)]
    """
    turns = row.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return DroppedDocument("no turns in field 'conversations'")
    parts: list[tuple[str, bool]] = []
    for turn in turns:
        role, text = ROLES.get(str(turn.get("from"))), turn.get("value")
        if role is None or not isinstance(text, str):
            return DroppedDocument("a turn without a known 'from' and a text 'value'")
        if role == "ASSISTANT" and text.strip():
            parts += [("ASSISTANT:", False), (f" {text.strip()}\n", True)]
        else:
            parts.append((f"{role}: {text.strip()}\n", False))
    runs = groupby(parts, key=itemgetter(1))  # a response is never next to another
    merged = [("".join(text for text, _ in run), scored) for scored, run in runs]
    if not any(scored for _, scored in merged):
        return DroppedDocument("a conversation without a response")
    document = usable("".join(text for text, _ in merged), source)
    if isinstance(document, DroppedDocument):
        return document
    return Document(document.text, document.source, tuple(merged))


def select(
    corpus: Corpus, items: Iterable[Document | DroppedDocument], count: Count
) -> Iterator[Document | DroppedDocument]:
    """Yield the conversations that a corpus's settings keep, cut; `count` counts the tokens of some parts.

    Other corpora are yielded as they are.
    """
    if not isinstance(corpus, Conversations):
        yield from items
        return
    samples = chain.from_iterable(samples_of(corpus, item, count) for item in items)
    taken = 0
    for sample in samples:
        yield sample
        taken += isinstance(sample, Document)
        if taken == corpus.limit:
            return


def samples_of(
    corpus: Conversations, document: Document | DroppedDocument, count: Count
) -> Iterator[Document | DroppedDocument]:
    """Yield the samples of one conversation, and what is left out with the reason."""
    if isinstance(document, DroppedDocument) or document.parts is None:
        yield document
        return
    if corpus.min_ascii and ascii_share(document.text) < corpus.min_ascii:
        yield DroppedDocument("of other letters than ASCII")
        return
    short = corpus.min_tokens and count(document.parts) < corpus.min_tokens
    for piece in (document.parts,) if short else cut(document.parts, corpus.max_tokens, count):
        if not any(scored for _, scored in piece):
            yield DroppedDocument("a conversation without a response")
        elif corpus.min_tokens and count(piece) < corpus.min_tokens:
            yield DroppedDocument(f"shorter than {corpus.min_tokens} tokens")
        else:
            yield replace(document, text="".join(text for text, _ in piece), parts=piece)


def cut(parts: Parts, most: int | None, count: Count) -> Iterator[Parts]:
    """Cut a conversation into runs of whole exchanges of at most `most` tokens; a longer exchange is a run of its own.

    Example:
        >>> parts = tuple((text, text.startswith("A")) for text in ["U1", "A1", "U2", "A2", "U3", "A3"])
        >>> [[text for text, _ in piece] for piece in cut(parts, 4, len)]
        [['U1', 'A1', 'U2', 'A2'], ['U3', 'A3']]
    """
    if most is None or count(parts) <= most:
        yield parts
        return
    around = count(())  # tokens at either end of a sample
    run: Parts = ()
    total = around
    for exchange in exchanges(parts):
        size = count(exchange) - around
        if run and total + size > most:
            yield run
            run, total = (), around
        run, total = run + exchange, total + size
    yield run


def exchanges(parts: Parts) -> Iterator[Parts]:
    """Split a conversation into exchanges, each what precedes a response, and the response."""
    start = 0
    for place, (_, scored) in enumerate(parts):
        if scored or place + 1 == len(parts):
            yield parts[start : place + 1]
            start = place + 1


def ascii_share(text: str) -> float:
    r"""Return the share of ASCII among a text's letters; 1 for a text without letters.

    Example:
        >>> ascii_share("ab, c 1"), ascii_share("ab\u0431\u0432")
        (1.0, 0.5)
    """
    letters = sum(character.isalpha() for character in text)
    return sum(character.isascii() and character.isalpha() for character in text) / letters if letters else 1.0


def marked(
    document: Document,
    ids: list[int],
    ends: tuple[list[int], list[int]],
    tag: list[int],
    encode: Callable[[str], list[int]],
) -> tuple[list[int], list[bool]]:
    """Return a document's tokens and which of them are scored: not its tag, and only the responses of a conversation.

    `ids` encode the whole text, including the special tokens `ends`.

    Source: arXiv:2411.13476, section 5.2 (domain tagging); arXiv:2401.07004, section 4 (responses).
    """
    text = [(ids[len(ends[0]) : len(ids) - len(ends[1])], True)]
    body = text if document.parts is None else [(encode(part), own) for part, own in document.parts]
    pieces = [(ends[0], True), (tag, False), *body, (ends[1], True)]
    return [i for piece, _ in pieces for i in piece], [scored for piece, scored in pieces for _ in piece]
