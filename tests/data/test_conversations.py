"""Conversations that are kept, and cut between turns, against lists made by hand; a word is a token."""

import pytest

from lab.data.config import Conversations
from lab.data.corpora import TextDocument
from lab.data.tokenizing import cut_conversation, cut_samples


def parts_of(text):
    """Parts of words; those in capitals are scored."""
    return tuple((word, word.isupper()) for word in text.split())


def conversation(text):
    return TextDocument(text, "part", parts_of(text))


def count(parts):
    return len(parts)


def kept(items, **settings):
    corpus = Conversations(path="x", **settings)
    return [
        " ".join(text for text, _ in item.parts) if isinstance(item, TextDocument) else item
        for item in cut_samples(corpus, items, count)
    ]


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("a A b B c C", 6, ["a A b B c C"]),
        ("a A b B c C", 5, ["a A b B", "c C"]),
        ("a A b B c C", 3, ["a A", "b B", "c C"]),
        ("a A b B c C", 1, ["a A", "b B", "c C"]),  # an exchange is never cut
        ("A b B c", 2, ["A", "b B", "c"]),
        ("a A b B", None, ["a A b B"]),
    ],
)
def test_cuts_are_between_exchanges(text, most, expected):
    pieces = list(cut_conversation(parts_of(text), most, count))
    assert pieces == [parts_of(piece) for piece in expected]
    assert sum(pieces, ()) == parts_of(text)


def test_short_foreign_and_unanswered_ones_are_left_out_and_counted():
    short = "shorter than 3 tokens"
    items = [conversation(text) for text in ("a A", "a A b", "a A b B c C d D e", "\u0431 \u0432 A \u0433")]
    found = kept([*items, "empty"], min_tokens=3, max_tokens=4, min_ascii=0.5)
    other, no_answer = "of other letters than ASCII", "a conversation without a response"
    assert found == [short, "a A b", "a A b B", "c C d D", no_answer, other, "empty"]
    found = kept([conversation("a A b B c C d D e E")], min_tokens=3, max_tokens=4)
    assert found == ["a A b B", "c C d D", short], "what remains of a long one"


def test_the_limit_counts_samples_and_what_follows_is_not_read():
    def items():
        yield from [conversation("a A b B"), "empty", conversation("c C")]
        pytest.fail("read beyond the limit")

    assert kept(items(), max_tokens=2, limit=3) == ["a A", "b B", "empty", "c C"]
