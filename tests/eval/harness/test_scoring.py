"""How eval.harness encodes and scores, against the decoder in a loop and by hand."""

import time

import pytest
from tokenizers import processors

from eval.harness.encoding import Encoder, ends_of
from lab.errors import CheckpointError, ConfigError, DataError
from tests.eval.harness.parts import ROUNDING, asked, by_loop, encoded, greedy_loop, make_model, split

pytest.importorskip("lm_eval")
LONG = "One of the magic numbers is 12345678."


def test_continuations_equal_the_loop_s(subject):
    pairs = [
        (context, continuation)
        for context in ("The magic numbers", "One of the ", "The numbers are", "", " ")
        for continuation in (" numbers", "numbers are", " one")
    ]
    expected = [by_loop(subject, *split(subject, *pair)) for pair in pairs]
    for rows in (1, 7):
        found = asked(make_model(subject, rows=rows), "loglikelihood", pairs)
        assert [nats for nats, _ in found] == pytest.approx([nats for nats, _ in expected], abs=ROUNDING)
        assert [flag for _, flag in found] == [flag for _, flag in expected]


def test_the_flag_marks_what_greedy_decoding_gives(subject):
    requests, flags = [], []
    for context in ("The magic numbers", "One of the", "The numbers are"):
        ids = encoded(subject, context)
        answer = greedy_loop(subject, ids, 4)
        for place in (None, 0, 3):  # as it is; with another first token; with another last one
            other = [(token + 1) % 400 if k == place else token for k, token in enumerate(answer)]
            requests.append(((context, str(place)), ids, other))
            flags.append(place is None)
    assert [flag for _, flag in make_model(subject)._loglikelihood_tokens(requests)] == flags


def test_shared_passes_are_run_once_and_share_their_seconds(subject):
    passes, model, started = [], make_model(subject), time.perf_counter()
    hook = subject.model.decoder.embedding.register_forward_hook(lambda m, inputs, out: passes.append(inputs[0].shape))
    pairs = [([0, 5, 6], [token]) for token in (7, 8, 9)] + [([0, 5], [6]), ([0, 5], [6, 9])]
    found = model._loglikelihood_tokens([((str(before), str(after)), before, after) for before, after in pairs])
    hook.remove()
    assert [tuple(shape) for shape in passes] == [(1, 3), (1, 2)]  # longest first
    assert found[4][0] == pytest.approx(found[3][0] + found[2][0], abs=ROUNDING)
    seconds = [seconds for _, _, seconds in model.cache_hook.costs.values()]
    assert len(seconds) == 5
    assert 0 < sum(seconds) < time.perf_counter() - started


def test_windows_by_hand(subject):
    """Six tokens in windows of four: the first four after <bos>, then the last two after the three before them."""
    six = encoded(subject, LONG)[1:7]
    model = make_model(subject, max_length=4)
    text = subject.tokenizer.decode(six)
    first, last = model.windows(text)
    bos = subject.tokenizer.token_to_id("<bos>")
    assert (first.inputs, first.targets) == ((bos, *six[:3]), tuple(six[:4]))
    assert (last.inputs, last.targets) == (tuple(six[1:5]), tuple(six[4:]))
    expected = by_loop(subject, [bos], six[:4])[0] + by_loop(subject, six[1:4], six[4:])[0]
    assert asked(model, "loglikelihood_rolling", [(text,)]) == [pytest.approx(expected, abs=ROUNDING)]


def test_texts_are_kept_when_their_last_window_is_done(subject):
    texts = [("One",), ("",), (f"{LONG} " * 3,)]
    model = make_model(subject, max_length=8, rows=2)
    found = asked(model, "loglikelihood_rolling", texts)
    assert [(args, value) for kind, args, value in model.cache_hook.found if kind != "cost"] == [
        (texts[number], found[number])
        for number in (1, 2, 0)  # nothing to do, longest windows, shorter ones
    ]
    assert [model.cache_hook.costs[text][:2] for text in texts] == [(1, False), (0, False), (8, False)]


def test_long_contexts_lose_their_beginning(subject):
    model = make_model(subject, max_length=9)
    pair = (f"{LONG} " * 3, "The numbers")
    before, after = split(subject, *pair)
    kept = (before + after)[-10:]  # the last token is only predicted
    ((nats, _),) = asked(model, "loglikelihood", [pair])
    assert nats == pytest.approx(by_loop(subject, kept[: 10 - len(after)], after)[0], abs=ROUNDING)
    assert model.cache_hook.costs[pair][:2] == (9, True)


def test_what_exactly_fits_is_not_cut(subject):
    before, after = split(subject, "One of the magic numbers", " is 7.")
    total = len(before) + len(after)
    assert [make_model(subject, total - k).continuation(before, after).cut for k in (1, 2)] == [False, True]
    model = make_model(subject, len(before) + 3)
    prompts = [model.prompt("One of the magic numbers", {"max_gen_toks": budget}) for budget in (3, 4)]
    assert [(list(prompt.inputs), prompt.cut) for prompt in prompts] == [(before, False), (before[1:], True)]


def test_the_longest_continuation_fills_the_window(subject):
    nine = encoded(subject, LONG)[1:10]
    pair = ("", subject.tokenizer.decode(nine))
    ((nats, _),) = asked(make_model(subject, max_length=9), "loglikelihood", [pair])
    assert nats == pytest.approx(by_loop(subject, *split(subject, *pair))[0], abs=ROUNDING)
    with pytest.raises(ConfigError, match="max_length=8: .* 9 tokens; raise"):
        asked(make_model(subject, max_length=8), "loglikelihood", [pair])


@pytest.mark.parametrize("context", ["The", ""])
def test_an_empty_continuation_is_refused(subject, context):
    with pytest.raises(DataError, match="no token of its own .*; "):
        asked(make_model(subject), "loglikelihood", [(context, "")])


def test_a_foreign_tokenizer_is_refused(subject):
    with pytest.raises(DataError, match="more ids than the model's 300; "):
        Encoder(subject.tokenizer, [], [1], 300).encode(LONG * 9 + " numbers mentioned in the text")


def test_an_empty_context_begins_a_document(subject):
    bos = subject.tokenizer.token_to_id("<bos>")
    assert make_model(subject).prompt("", {}).inputs == (bos,)
    model = make_model(subject, chat="a template")
    ids = encoded(subject, "One")
    found, expected = (asked(model, "loglikelihood", [("", text)])[0] for text in ("<bos>One", "One"))
    assert found == expected == (pytest.approx(by_loop(subject, [bos], ids[1:])[0], abs=ROUNDING), False)


def test_a_template_s_special_tokens_are_read(subject):
    bos, eos = (subject.tokenizer.token_to_id(name) for name in ("<bos>", "<eos>"))
    plain, chat = make_model(subject).encoder, make_model(subject, chat="a template").encoder
    one, two = encoded(subject, "One")[1:], encoded(subject, " two")[1:]
    assert chat.encode("<bos>One<eos> two") == [bos, *one, eos, *two]  # its own <bos>, and no second one
    assert chat.encode("One<eos>") == [bos, *one, eos]
    assert eos not in plain.encode("One<eos>")


def test_the_ends_of_a_folder(subject, tmp_path):
    tokenizer = subject.tokenizer
    bos, eos = (tokenizer.token_to_id(name) for name in ("<bos>", "<eos>"))
    assert ends_of(tmp_path, tokenizer, None) == ([], [])
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert ends_of(tmp_path, tokenizer, 9) == ([], [9])
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7, 6]}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<eos>"}, "bos_token": "<bos>"}')
    assert ends_of(tmp_path, tokenizer, 9) == ([bos], [9, 7, 6, eos])
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="generation_config"):
        ends_of(tmp_path, tokenizer, 9)


def test_the_token_of_an_empty_context(subject):
    bare = type(subject.tokenizer).from_str(subject.tokenizer.to_str())
    bare.post_processor = processors.ByteLevel(trim_offsets=False)
    assert Encoder(bare, [5], [6], 400).prefix_id == 5
    assert Encoder(bare, [], [6, 7], 400).prefix_id == 6
    assert Encoder(subject.tokenizer, [5], [6], 400).prefix_id == subject.tokenizer.token_to_id("<bos>")
    with pytest.raises(DataError, match="no token begins or ends a document; "):
        Encoder(bare, [], [], 400)
