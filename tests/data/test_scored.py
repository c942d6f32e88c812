"""Tags and conversations: what is read and not scored, from the corpus to the packs."""

import itertools
import json

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from lab.data.config import Conversations, DataConfig, Slimpajama, Text, TokenizerFile
from lab.data.corpora import TextDocument, to_document
from lab.data.preparation import prepare, shard_folder
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.data.tokenizing import TokenShardWriter, cut_conversation, cut_samples
from lab.masks import Arrangement, Causal, Document
from tests.data.stores import drawn_lengths, numbered_documents, refused, stream_over
from tests.data.windows import IGNORE, runs_of
from tests.tokenizer_forms import make_tokenizer

WORDS = ["<bos>", "<eos>", "<unk>", "\n", " ", "USER:", "ASSISTANT:", "SYSTEM:", "Hi", "Hello.", "Bye", "books", "news"]
ID = {word: number for number, word in enumerate(WORDS)}
BAD_TURN = "a turn without a known 'from' and a text 'value'"
NO_RESPONSE = "a conversation without a response"
LENGTHS = drawn_lengths(3, 40, 13)
SHARDS = (11, 25)  # documents at which the second and the third shard begin


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of whole words, spaces and line breaks, whose texts begin with <bos>."""
    tokenizer = Tokenizer(models.WordLevel(ID, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n| |[^ \n]+"), behavior="isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return TokenizerFile(path=str(path), eos="<eos>")


def turns(*pairs):
    return {"conversations": [{"from": role, "value": text} for role, text in pairs]}


def read_back(place, rows, corpus, tokenizer, **settings):
    """Prepare rows; return the store, and (word, scored) of every token."""
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own = corpus(path=str(place / "rows.jsonl"))
    config = DataConfig(corpus=own, tokenizer=tokenizer, held_out_frac=0.0, folder=str(place / "shards"), **settings)
    prepare(config, progress=False)
    store = TokenStore.open(shard_folder(config), "train")
    ids, marks = (store.read(0, store.n_tokens, *kind).tolist() for kind in ((), ("scored",)))
    return store, [(WORDS[token], mark) for token, mark in zip(ids, marks, strict=True)]


def read(*words):
    return [(word, False) for word in words]


def scored(*words):
    return [(word, True) for word in words]


HELLO, BYE = (" Hello.\n", True), (" Bye\n", True)  # scored
CONVERSATIONS = {
    "system_and_other_names": (
        turns(("system", "Be kind."), ("user", "Hi"), ("assistant", " Hello. \n")),
        [("SYSTEM: Be kind.\nUSER: Hi\nASSISTANT:", False), HELLO],
    ),
    "begins_with_responses_and_ends_with_a_prompt": (
        turns(("gpt", "Hello."), ("gpt", "Bye"), ("human", "Hi")),
        [("ASSISTANT:", False), HELLO, ("ASSISTANT:", False), BYE, ("USER: Hi\n", False)],
    ),
    "an_empty_response_is_not_scored": (
        turns(("human", "Hi"), ("gpt", " "), ("gpt", "Bye")),
        [("USER: Hi\nASSISTANT: \nASSISTANT:", False), BYE],
    ),
}


@pytest.mark.parametrize(("row", "parts"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_conversation_in_parts(row, parts):
    document = to_document(row, Conversations(path="all"), "place")
    assert document.parts == tuple(parts)
    assert (document.text, document.source) == ("".join(text for text, _ in parts), "place")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no turns in field 'conversations'"),
        ({"conversations": []}, NO_RESPONSE),
        ({"conversations": [{"value": "Hi"}]}, BAD_TURN),
        ({"conversations": [{"from": "bing", "value": "Hi"}]}, BAD_TURN),
        (turns(("human", "Hi"), ("gpt", 3)), BAD_TURN),
        (turns(("human", "Hi"), ("gpt", " \n")), NO_RESPONSE),
        (turns(("human", "Hi"), ("gpt", "\ud800")), "not UTF-8"),
    ],
    ids=itertools.count(),
)
def test_what_is_no_conversation_is_dropped(row, reason):
    assert to_document(row, Conversations(path="all"), "place") == reason


def test_the_tokens_of_a_conversation_and_which_are_scored(tmp_path, tokenizer):
    rows = [turns(("human", "Hi"), ("gpt", "Hello.")), turns(("human", "Hi Hi"), ("gpt", "Bye"), ("human", "Bye"))]
    store, words = read_back(tmp_path, rows, Conversations, tokenizer)
    first = [*scored("<bos>"), *read("USER:", " ", "Hi", "\n", "ASSISTANT:")]
    first += scored(" ", "Hello.", "\n", "<eos>")
    second = [*scored("<bos>"), *read("USER:", " ", "Hi", " ", "Hi", "\n", "ASSISTANT:"), *scored(" ", "Bye", "\n")]
    second += [*read("USER:", " ", "Bye", "\n"), *scored("<eos>")]
    assert words == first + second
    assert not store.scores_all
    assert [len(document) for document in store.documents()] == [10, 16]


def test_a_tag_is_read_and_the_text_after_it_scored(tmp_path, tokenizer):
    texts = {"books": "Hi Bye", "news": "Hello."}
    rows = [{"text": text, "meta": {"redpajama_set_name": name}} for name, text in texts.items()]
    _, words = read_back(tmp_path, rows, Slimpajama, tokenizer, tags=True)
    first = [*scored("<bos>"), *read("books", "\n"), *scored("Hi", " ", "Bye", "<eos>")]
    assert words == [*first, *scored("<bos>"), *read("news", "\n"), *scored("Hello.", "<eos>")]


@pytest.mark.parametrize("form", ["llama", "prepend_unigram", "always", "never"])
@pytest.mark.parametrize("corpus", [Conversations, Slimpajama, Text])
def test_documents_have_the_tokens_of_their_whole_text_and_one_end(tmp_path, form, corpus):
    """Parts that a tokenizer encodes alone may get a space each; texts end with </s> whoever adds it."""
    tokenizer = make_tokenizer(form, ends=True)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if corpus is Conversations:
        rows = [turns(("human", "Is 12 41?"), ("gpt", " No. "), ("human", "Is 1?"), ("gpt", "Yes 12."))]
        parts = [("USER: Is 12 41?\nASSISTANT:", 0), (" No.\n", 1), ("USER: Is 1?\nASSISTANT:", 0), (" Yes 12.\n", 1)]
    else:
        rows = [{"text": "\n14 is it.", "meta": {"redpajama_set_name": "books"}}]
        parts = [("books\n", 0)] * (corpus is Slimpajama) + [("\n14 is it.", 1)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows * 2)))
    own = corpus(path=str(tmp_path / "rows.jsonl"))
    file = TokenizerFile(path=str(tmp_path), eos="</s>")
    settings = {"held_out_frac": 0.0, "folder": str(tmp_path / "shards"), "tags": corpus is Slimpajama}
    config = DataConfig(corpus=own, tokenizer=file, **settings)
    prepare(config, progress=False)
    store = TokenStore.open(shard_folder(config), "train")
    whole = "".join(text for text, _ in parts)
    assert [ids.tolist() for ids in store.documents()] == [tokenizer.encode(whole).ids] * 2
    marks = store.read(0, store.n_tokens, "scored")[: store.n_tokens // 2]
    spans = tokenizer.encode(whole).offsets[1:-1]
    ends = list(itertools.accumulate(len(text) for text, _ in parts))
    by_hand = [parts[next(k for k, end in enumerate(ends) if stop <= end)][1] for _, stop in spans]
    assert marks.tolist() == [1, *by_hand[: len(spans)], 1]
    for path in shard_folder(config).glob("task-*/manifest.json"):  # as an older version wrote it
        content = json.loads(path.read_text())
        del content["encoding"]
        path.write_text(json.dumps(content))
    if corpus is not Text:
        with refused(f"{shard_folder(config) / 'task-00000'}: an older version encoded the turns or tags"):
            TokenStore.open(shard_folder(config), "train")


def test_samples_are_cut_by_the_tokens_of_their_whole_text():
    """A count that is not the sum of its parts', of texts whose lengths rise with the sample."""
    calls = []

    def count(parts):
        calls.append(len(parts))
        return len(parts) // 2 + 1

    rows = cut_conversation(tuple(("", bool(k % 2)) for k in range(200)), 11, count)
    assert [len(parts) for parts in rows] == [20] * 10
    assert sum(calls) < 10 * 200, "it rises with the sample, not with the conversation"


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """Documents in which token t stands at place t - 1, their marks, and a store of three shards, one without marks."""
    folder = tmp_path_factory.mktemp("marked")
    documents = numbered_documents(LENGTHS)
    generator = np.random.default_rng(8)
    marks = [(generator.random(len(document)) < 0.6).tolist() for document in documents]
    marks[SHARDS[0] : SHARDS[1]] = [[True] * len(document) for document in documents[SHARDS[0] : SHARDS[1]]]
    marks[0][0] = marks[SHARDS[0] - 1][-1] = marks[SHARDS[1]][0] = marks[-1][-1] = False  # the ends of shards
    bounds = [0, *SHARDS, len(documents)]
    for number, (a, b) in enumerate(itertools.pairwise(bounds)):
        writer = TokenShardWriter(folder / f"task-{number:05d}", "<u2", marks_scored=number != 1)
        for document, own in zip(documents[a:b], marks[a:b], strict=True):
            writer.add("train", document, "made", own if number != 1 else None)
        writer.close()
    return documents, marks, TokenStore.open(folder, "train")


def answers(documents, marks):
    """Map each token to what is to be predicted at it: the next of its document where that is scored."""
    out = {}
    for document, own in zip(documents, marks, strict=True):
        for token, after, mark in zip(document, document[1:], own[1:]):
            out[token] = after if mark else IGNORE
        out[document[-1]] = IGNORE
    return out


@pytest.mark.parametrize(
    ("mode", "mask"),
    [("natural", "causal"), *itertools.product(["concatenated", "uniform"], ["causal", "document", "chunks"])],
)
def test_targets_that_are_not_scored_are_ignored_in_packs(marked, mode, mask):
    documents, marks, store = marked
    segments = index_segments(store, mode, 9)
    masks = {"causal": Causal(), "document": Document(), "chunks": Document(chunks=3)}
    stream = stream_over(store, segments, arrangement=Arrangement(mask=masks[mask]), pack_tokens=9, seed=4)
    wanted, seen = answers(documents, marks), []
    for pack in itertools.islice(stream, segments.n if mode != "uniform" else 3 * segments.n):
        for tokens, targets, _, _ in runs_of(pack):
            assert targets == [wanted[token] for token in tokens[:-1]] + [targets[-1]]
            assert targets[-1] in (wanted[tokens[-1]], IGNORE)
            seen += zip(tokens, targets, strict=True)
    if mode == "natural":  # every token once, and a window's last token still knows the next window's first
        assert sorted(seen) == sorted(wanted.items())
    elif mode == "concatenated":
        last = sum(LENGTHS) // 9 * 9
        assert sorted(seen) == [(token, wanted[token]) for token in range(1, last + 1)]


def parts_of(text):
    """Parts of words; those in capitals are scored."""
    return tuple((word, word.isupper()) for word in text.split())


def spoken(text):
    return TextDocument(text, "part", parts_of(text))


def kept(items, **settings):
    corpus = Conversations(path="x", **settings)
    return [
        " ".join(text for text, _ in item.parts) if isinstance(item, TextDocument) else item
        for item in cut_samples(corpus, items, len)
    ]


def test_short_foreign_and_unanswered_ones_are_left_out_and_counted():
    short = "shorter than 3 tokens"
    items = [spoken(text) for text in ("a A", "a A b", "a A b B c C d D e", "\u0431 \u0432 A \u0433")]
    found = kept([*items, "empty"], min_tokens=3, max_tokens=4, min_ascii=0.5)
    other, no_answer = "of other letters than ASCII", "a conversation without a response"
    assert found == [short, "a A b", "a A b B", "c C d D", no_answer, other, "empty"]
    found = kept([spoken("a A b B c C d D e E")], min_tokens=3, max_tokens=4)
    assert found == ["a A b B", "c C d D", short], "what remains of a long one"


def test_the_limit_counts_samples_and_what_follows_is_not_read():
    def items():
        yield from [spoken("a a A b B"), "empty", spoken("c C")]
        pytest.fail("read beyond the limit")

    assert kept(items(), max_tokens=2, limit=3) == ["a a A", "b B", "empty", "c C"], "an exchange is never cut"
