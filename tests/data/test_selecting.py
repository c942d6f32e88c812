"""Samples of selected sentences in packs, against lists of tokens; and what a file of token types is refused for."""

import itertools
import json

import numpy as np
import pytest

from lab.core.errors import ConfigError
from lab.data.preparation import shard_folder
from lab.data.segments import index_segments
from lab.data.selecting import Selection, read_token_types
from lab.data.tokenizer import load_tokenizer, vocabulary_hash
from lab.skip import LongRecipe
from tests.data.stores import drawn_lengths, make_store, refused, stream_over
from tests.data.windows import FIRST, IGNORE, documents_of, runs_of

WINDOW, BUDGET = 40, 12  # tokens of the text that a sample is made of, tokens of a sample
LENGTHS = drawn_lengths(4, 90, 25)
N_IDS = FIRST + sum(LENGTHS)
ENDS = np.arange(N_IDS) % 5 == 0  # every token stands once in the text: sentences of five tokens
TYPES = {  # of every token id whether it is impactful
    "few": np.arange(N_IDS) % 17 == 3,
    "rare": np.arange(N_IDS) % 61 == 3,  # in few windows, and then in a sentence or two
    "all": np.ones(N_IDS, bool),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Documents in which every token stands once, and their store."""
    documents = documents_of(LENGTHS)
    return documents, make_store(tmp_path_factory.mktemp("store"), [documents[:40], documents[40:]])


def sentences_of(start):
    """List the sentences of the window that begins at a place, tokens of each."""
    sentences = [[]]
    for token in range(FIRST + start, FIRST + start + WINDOW):
        sentences[-1].append(token)
        if token % 5 == 0:
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


@pytest.mark.parametrize("types", TYPES)
def test_samples_by_definition(text, types):
    impactful = {token for token in range(N_IDS) if TYPES[types][token]}
    last = {document[-1] for document in text[0]}
    totals, seen = np.zeros(3, int), set()
    segments = index_segments(text[1], "concatenated", WINDOW)
    selection = Selection(LongRecipe(target_len=WINDOW, selection="unread"), BUDGET, ENDS, TYPES[types])
    stream = stream_over(text[1], segments, pack_tokens=3 * BUDGET, look_ahead=8, selection=selection)
    for pack in itertools.islice(stream, 30):
        found = np.zeros(3, int)
        for tokens, targets, ids, _ in runs_of(pack):
            assert tokens == sorted(set(tokens)), "in the order of the text"
            start = (tokens[0] - FIRST) // WINDOW * WINDOW
            sentences = sentences_of(start)
            remaining = [s for s in sentences if impactful & set(s)]
            matched, remaining = bool(remaining), remaining or sentences
            kept = [[t for t in sentence if t in tokens] for sentence in remaining]
            assert sorted(itertools.chain(*kept)) == tokens, "nothing of a sentence that was removed"
            assert all(part == sentence[: len(part)] for part, sentence in zip(kept, remaining))
            assert sum(0 < len(part) < len(sentence) for part, sentence in zip(kept, remaining)) <= 1
            assert len(tokens) == min(BUDGET, sum(map(len, remaining)))
            assert targets == [t + 1 if t + 1 in tokens and t not in last else IGNORE for t in tokens]
            firsts = {sentence[0] for sentence in sentences}
            steps = {token: b - a for token, a, b in zip(tokens[1:], ids, ids[1:])}
            assert all(step == 1 or (step > 1 and token in firsts) for token, step in steps.items())
            assert ids[0] == 0
            assert ids[-1] < WINDOW
            found += [1, not matched, len(tokens) < BUDGET]
            seen.add(tuple(tokens))
        assert pack.selected == tuple(found)
        totals += found
    assert len(seen) > 40
    assert (totals[1] > 0) == (types == "rare")
    assert (totals[2] > 0) == (types in ("few", "rare"))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"tokenizer": "0f"}, "was made with another tokenizer than data.tokenizer; "),
        *(({"token_ids": ids}, "is no result of impact ({}") for ids in ([], [70_000], [1.5], [True], [-1], None)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_file_is_refused_in_one_line(values, line, prepared, tmp_path):
    tokenizer = load_tokenizer(shard_folder(prepared))
    result = {"tokenizer": vocabulary_hash(tokenizer), "token_ids": [tokenizer.token_to_id("7")], **values}
    (tmp_path / "impact.json").write_text(json.dumps(result))
    with refused(f"skip.selection={tmp_path}: {line}", ConfigError):
        read_token_types(tmp_path, tokenizer)
