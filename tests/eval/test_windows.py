"""Windows with their targets: held-out documents end to end, or a file."""

import numpy as np
import pytest

from eval.impact.windows import file_windows
from lab.data.packing import Windows, held_out_windows
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.errors import DataError

LENGTH = 40


def documents_of(data):
    return [d.tolist() for d in TokenStore.open(shard_folder(data), "held_out").documents()]


def test_held_out_windows_by_definition(prepared):
    documents = documents_of(prepared)
    text = [(token, number) for number, document in enumerate(documents) for token in document]
    room = len(text) // LENGTH
    windows = held_out_windows(prepared, length=LENGTH, windows=room, seed=3)
    assert windows.tokens.shape == windows.targets.shape == (room, LENGTH)
    expected = []
    for start in range(0, room * LENGTH, LENGTH):
        part = text[start : start + LENGTH + 1]
        targets = [b if own == other else -100 for (_, own), (b, other) in zip(part, part[1:])]
        expected.append(([token for token, _ in part[:LENGTH]], targets + [-100] * (LENGTH - len(targets))))
    found = list(zip(windows.tokens.tolist(), windows.targets.tolist()))
    assert found != expected, "they are shuffled"
    assert sorted(found) == sorted(expected)
    assert any(targets.count(-100) for _, targets in expected)


def test_the_seed_draws_windows(prepared):
    drawn = [held_out_windows(prepared, length=LENGTH, windows=4, seed=seed).tokens.tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_too_few_held_out_tokens_are_one_line(prepared):
    room = sum(map(len, documents_of(prepared))) // LENGTH
    with pytest.raises(DataError) as caught:
        held_out_windows(prepared, length=LENGTH, windows=room + 1, seed=0)
    assert str(caught.value) == (
        f"--windows={room + 1}: the held-out documents in {shard_folder(prepared)} hold {room} windows of 40 "
        "tokens; lower it, shorten --length, raise data.held_out_frac, or use --text"
    )


def test_windows_of_a_file(bpe, text_file):
    ids = bpe.encode(text_file.read_text(), add_special_tokens=False).ids
    windows = file_windows(str(text_file), bpe, length=LENGTH, windows=5, seed=0, vocab_size=400)
    starts = []
    for tokens, targets in zip(windows.tokens.tolist(), windows.targets.tolist(), strict=True):
        assert tokens[0] == bpe.token_to_id("<bos>")
        assert targets[:-1] == tokens[1:]
        starts += [s for s in range(0, len(ids), LENGTH) if ids[s : s + LENGTH] == targets]
    assert len(set(starts)) == 5
    with pytest.raises(DataError, match="--windows=5000: --text=.* has room for"):
        file_windows(str(text_file), bpe, length=LENGTH, windows=5000, seed=0, vocab_size=400)


def test_rows_hold_the_last_target_where_there_is_one():
    windows = Windows(np.array([[1, 2], [3, 4]]), np.array([[2, 9], [4, -100]]))
    assert [row.tolist() for row in windows.rows()] == [[1, 2, 9], [3, 4]]
