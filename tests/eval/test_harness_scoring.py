"""How eval.harness encodes and scores, against the decoder in a loop and the harness's own helpers."""

import time

import pytest
import torch
from tokenizers import processors

from eval.harness.encoding import Encoder, Ends, Scored
from eval.harness.ends import ends_of
from lab.errors import CheckpointError, ConfigError, DataError
from lab.loading import open_model
from lab.model.generation.generate import greedy
from tests.eval.harnessed import ROUNDING, by_loop, encoded, make_encoder, make_scorer, values

pytest.importorskip("lm_eval")


@pytest.fixture(scope="module")
def model(run_folder):
    return open_model(run_folder)


@pytest.fixture
def scorer(model):
    return make_scorer(model)


def test_pieces_agree_with_the_harness_s(model):
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    encoder = make_encoder(model, max_length=5)
    ids = encoder.bare("One of the magic numbers is 12345678.")
    for length in range(1, len(ids) + 1):
        text = model.tokenizer.decode(ids[:length])
        theirs = [make_disjoint_window(w) for w in get_rolling_token_windows(ids[:length], encoder.prefix_id, 5, 1)]
        # theirs is the context, to which the targets but the last are added when it is run
        ours = [(list(piece.inputs), list(piece.targets)) for piece in encoder.pieces(text)]
        assert [(inputs[: len(inputs) - len(targets) + 1], targets) for inputs, targets in ours] == theirs
    assert len(ids) > 15  # more than three pieces
    assert list(encoder.pieces("")) == []


def test_pieces_by_hand(model):
    encoder = make_encoder(model, max_length=4)
    six = encoder.bare("One of the magic numbers is 12345678.")[:6]
    first, last = encoder.pieces(model.tokenizer.decode(six))
    assert first == Scored((encoder.prefix_id, *six[:3]), tuple(six[:4]))
    assert last == Scored(tuple(six[1:5]), tuple(six[4:]))


def test_continuations_equal_the_loop_s(scorer, model):
    contexts = ["The magic numbers", "One of the", "The numbers are", "", " "]
    pairs = [(c, a) for c in contexts for a in (" numbers", " numbers are", " one")]
    for (context, continuation), found in zip(pairs, values(scorer.continuations(pairs)), strict=True):
        nats, likeliest = by_loop(model, *scorer.encoder.pair(context, continuation))
        assert found == (pytest.approx(nats, abs=ROUNDING), likeliest)


def test_batches_do_not_change_scores(model):
    pairs = [
        ("One of the magic numbers " * k, f" {word}") for k in (1, 2) for word in ("the", "numbers are", "one", "so")
    ]
    alone = values(make_scorer(model, rows=1).continuations(pairs))
    together = values(make_scorer(model, rows=7).continuations(pairs))
    assert [nats for nats, _ in together] == pytest.approx([nats for nats, _ in alone], abs=ROUNDING)
    shuffled = values(make_scorer(model, rows=2).continuations(pairs[::-1]))[::-1]
    assert [nats for nats, _ in shuffled] == pytest.approx([nats for nats, _ in alone], abs=ROUNDING)


def test_rows_side_by_side_share_their_seconds(model):
    pairs = [("One of the magic numbers ", f" {word}") for word in ("the", "one", "so", "are", "in", "of")]
    started = time.perf_counter()
    batches = list(make_scorer(model, rows=6).continuations(pairs))
    seconds = [outcome.seconds for batch in batches for outcome in batch.values()]
    assert len(seconds) == 6
    assert 0 < sum(seconds) < time.perf_counter() - started


def test_the_flag_tells_what_greedy_decoding_gives(scorer, model):
    requests, flags = [], []
    for context in ("The magic numbers", "One of the", "The numbers are"):
        ids = encoded(model, context)
        said = greedy(model.decoder, torch.tensor([ids]), 4)[0].tolist()
        for place in (None, 0, 3):  # as it is said; with another first token; with another last one
            other = [(token + 1) % 400 if k == place else token for k, token in enumerate(said)]
            requests.append(Scored((*ids, *other[:-1]), tuple(other)))
            flags.append(place is None)
    found = values(scorer.passes(requests))
    assert [flag for _, flag in found] == flags
    for request, (nats, _) in zip(requests, found, strict=True):
        length = len(request.inputs) - len(request.targets) + 1
        assert nats == pytest.approx(by_loop(model, request.inputs[:length], request.targets)[0], abs=ROUNDING)


def test_shared_passes_are_run_once(scorer, model):
    passes = []
    hook = model.decoder.embedding.register_forward_hook(lambda module, inputs, output: passes.append(inputs[0].shape))
    requests = [Scored((0, 5, 6), (token,)) for token in (7, 8, 9)] + [Scored((0, 5), (6,)), Scored((0, 5, 6), (6, 9))]
    found = values(scorer.passes(requests))
    hook.remove()
    assert [tuple(shape) for shape in passes] == [(1, 3), (1, 2)]  # longest first
    assert found[4][0] == pytest.approx(found[3][0] + found[2][0], abs=ROUNDING)


def test_texts_come_out_when_their_last_piece_is_known(model):
    texts = ["One", "", "One of the magic numbers is 12345678. " * 3]
    scorer = make_scorer(model, max_length=8, rows=2)
    batches = list(scorer.texts(texts))
    assert [sorted(batch) for batch in batches if batch] == [[1], [2], [0]]  # longest pieces first
    whole = batches[-1][0], next(batch[2] for batch in batches if 2 in batch)
    assert [outcome.tokens for outcome in whole] == [1, 8]
    for text, nats in zip(texts, values(iter(batches)), strict=True):
        pieces = list(scorer.encoder.pieces(text))
        expected = sum(by_loop(model, i[: len(i) - len(t) + 1], t)[0] for i, t in pieces)
        assert nats == pytest.approx(expected, abs=ROUNDING * 20)


def test_long_contexts_lose_their_beginning_and_say_so(model):
    scorer = make_scorer(model, max_length=9)
    context, continuation = "One of the magic numbers is 7. " * 3, "The numbers"
    before, after = scorer.encoder.pair(context, continuation)
    (batch,) = scorer.continuations([(context, continuation)])
    kept = (before + after)[-10:]  # the last token is only predicted
    assert batch[0].value[0] == pytest.approx(by_loop(model, kept[: 10 - len(after)], after)[0], abs=ROUNDING)
    assert (batch[0].cut, batch[0].tokens) == (True, 9)
    assert batch[0].seconds > 0
    assert scorer.encoder.scored(model.tokenizer.decode(before[-(10 - len(after)) + 1 :]), continuation)[1] is False
    with pytest.raises(ConfigError, match="max_length=9: a continuation takes"):
        list(scorer.continuations([("One", " numbers" * 12)]))


def test_what_exactly_fits_is_not_cut(model):
    before, after = make_encoder(model).pair("One of the magic numbers", " is 7.")
    total = len(before) + len(after)
    assert make_encoder(model, total - 1).scored("One of the magic numbers", " is 7.")[1] is False
    assert make_encoder(model, total - 2).scored("One of the magic numbers", " is 7.")[1] is True
    assert make_encoder(model, len(before) + 3).prompt("One of the magic numbers", 3) == (before, False)
    assert make_encoder(model, len(before) + 3).prompt("One of the magic numbers", 4) == (before[1:], True)


def test_the_longest_continuation_fills_the_window(model):
    scorer = make_scorer(model, max_length=9)
    nine = model.tokenizer.decode(scorer.encoder.bare("One of the magic numbers is 12345678.")[:9])
    ((nats, _),) = values(scorer.continuations([("", nine)]))
    assert nats == pytest.approx(by_loop(model, *scorer.encoder.pair("", nine))[0], abs=ROUNDING)
    with pytest.raises(ConfigError, match="max_length=8: a continuation takes 9 tokens"):
        list(make_scorer(model, max_length=8).continuations([("", nine)]))


def test_an_empty_continuation_and_a_foreign_tokenizer_are_refused(model):
    with pytest.raises(DataError, match="no token of its own"):
        make_encoder(model).pair("The", "")
    with pytest.raises(DataError, match="more ids than the model's 400"):
        make_encoder(model).checked([400])


def test_an_empty_context_begins_a_document(model):
    encoder = make_encoder(model)
    bos = model.tokenizer.token_to_id("<bos>")
    assert encoder.pair("", "One")[0] == encoder.pair(" ", "One")[0] == [bos]
    assert bos not in encoder.pair(" ", "One")[1]
    assert encoder.prompt("", 4) == ([bos], False)
    one = encoder.bare("One")
    assert make_encoder(model, templated=True).pair("", "<bos>One") == ([bos], one)  # which has begun it already


def test_a_template_s_special_tokens_are_read(model):
    bos, eos = (model.tokenizer.token_to_id(name) for name in ("<bos>", "<eos>"))
    plain, chat = make_encoder(model), make_encoder(model, templated=True)
    text = "<bos>One<eos> two"
    one, two = plain.bare("One"), plain.bare(" two")
    assert chat.encode(text) == [bos, *one, eos, *two]  # its own <bos>, and no second one
    assert chat.encode("One<eos>") == [bos, *one, eos]
    assert eos not in plain.encode(text)


def test_the_ends_of_a_folder(model, tmp_path):
    tokenizer = model.tokenizer
    one, two = (tokenizer.token_to_id(name) for name in ("<bos>", "<eos>"))
    assert ends_of(tmp_path, tokenizer, None) == ((), ())
    assert ends_of(tmp_path, tokenizer, 9) == ((), (9,))
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7, 6]}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<eos>"}, "bos_token": "<bos>"}')
    assert ends_of(tmp_path, tokenizer, 9) == ((one,), (9, 7, 6, two))
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="generation_config"):
        ends_of(tmp_path, tokenizer, 9)


def test_what_stands_for_an_empty_context(model):
    bare = type(model.tokenizer).from_str(model.tokenizer.to_str())
    bare.post_processor = processors.ByteLevel(trim_offsets=False)
    assert Encoder(bare, Ends((5,), (6,)), 8, 400).prefix_id == 5
    assert Encoder(bare, Ends((), (6, 7)), 8, 400).prefix_id == 6
    with pytest.raises(DataError, match="no token begins or ends"):
        Encoder(bare, Ends((), ()), 8, 400)
    assert Encoder(model.tokenizer, Ends((5,), (6,)), 8, 400).prefix_id == model.tokenizer.token_to_id("<bos>")
