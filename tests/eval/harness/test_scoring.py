"""How eval.harness encodes, scores and answers, against the decoder in a loop and by hand."""

from dataclasses import replace

import pytest
import torch
from tokenizers import processors

from eval.harness import model as harness
from eval.harness.encoding import Encoder
from lab.errors import CheckpointError, ConfigError, DataError
from tests.eval.harness.parts import ROUNDING, asked, by_loop, encoded, greedy_loop, make_model, split

pytest.importorskip("lm_eval")
LONG = "One of the magic numbers is 12345678."
CONTEXTS = ("The magic", "One of the", "The numbers are", "mentioned in one", "What", "The", "in the texts below")


def test_the_flag_marks_what_greedy_decoding_returns(subject):
    requests, flags = [], []
    for context in ("The magic numbers", "One of the", "The numbers are"):
        ids = encoded(subject, context)
        answer = greedy_loop(subject, ids, 4)
        for place in (None, 0, 3):  # as it is; with another first token; with another last one
            other = [(token + 1) % 400 if k == place else token for k, token in enumerate(answer)]
            requests.append(((context, str(place)), ids, other))
            flags.append(place is None)
    assert [flag for _, flag in make_model(subject)._loglikelihood_tokens(requests)] == flags


def test_shared_passes_are_run_once(subject):
    passes, model = [], make_model(subject)
    hook = subject.model.decoder.embedding.register_forward_hook(lambda m, inputs, out: passes.append(inputs[0].shape))
    pairs = [([0, 5, 6], [token]) for token in (7, 8, 9)] + [([0, 5], [6]), ([0, 5], [6, 9])]
    found = model._loglikelihood_tokens([((str(before), str(after)), before, after) for before, after in pairs])
    hook.remove()
    assert [tuple(shape) for shape in passes] == [(1, 3), (1, 2)]  # longest first
    assert found[4][0] == pytest.approx(found[3][0] + found[2][0], abs=ROUNDING)


def test_texts_are_kept_when_their_last_window_is_done(subject):
    texts, model = [("One",), ("",), (f"{LONG} " * 3,)], make_model(subject, max_length=8, batch=2)
    found = asked(model, "loglikelihood_rolling", texts)
    kept = model.cache_hook.of("loglikelihood_rolling")
    assert list(kept.items()) == [(texts[number], found[number]) for number in (2, 0)]  # longest windows first
    assert found[1] == 0
    assert model.cache_hook.of("read") == {texts[2]: (8, False), texts[0]: (1, False)}


def test_long_contexts_lose_their_beginning(subject):
    model, pair = make_model(subject, max_length=9), (f"{LONG} " * 3, "The numbers")
    before, after = split(subject, *pair)
    kept = (before + after)[-10:]  # the last token is only predicted
    ((nats, _),) = asked(model, "loglikelihood", [pair])
    assert nats == pytest.approx(by_loop(subject, kept[: 10 - len(after)], after)[0], abs=ROUNDING)
    assert model.cache_hook.of("read") == {pair: (9, True)}


@pytest.mark.parametrize(
    ("room", "places"),
    [
        (12, range(12)),
        (11, [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]),
        (4, [0, 1, 10, 11]),
        (3, [0, 11]),
        (2, [0, 11]),
        (1, [11]),
    ],
    ids=str,
)
def test_the_middle_of_long_contexts_is_cut_as_longbench_does(subject, monkeypatch, room, places):
    """The first and the last half of the tokens that fit, rounded down, before answers and continuations alike."""
    ids = list(range(100, 112))
    for budget, window in ((4, room + 4), (1, room + 1)):
        model = make_model(subject, max_length=window, truncate="middle")
        monkeypatch.setattr(model.encoder, "encode", lambda text: ids)
        prompt = model.prompt("One", {"max_gen_toks": budget})
        assert (list(prompt.inputs), prompt.cut) == ([ids[place] for place in places], room < 12)
    request = make_model(subject, max_length=room + 1, truncate="middle").continuation(ids, [7, 8])
    assert (list(request.inputs), request.cut) == ([*(ids[place] for place in places), 7], room < 12)


def test_what_exactly_fits_is_not_cut(subject):
    before, after = split(subject, "One of the magic numbers", " is 7.")
    total = len(before) + len(after)
    cut = [make_model(subject, max_length=total - k).continuation(before, after).cut for k in (1, 2)]
    assert cut == [False, True]
    model = make_model(subject, max_length=len(before) + 3)
    prompts = [model.prompt("One of the magic numbers", {"max_gen_toks": budget}) for budget in (3, 4)]
    assert [(list(prompt.inputs), prompt.cut) for prompt in prompts] == [(before, False), (before[1:], True)]


def test_the_longest_continuation_fills_the_window(subject):
    pair = ("", subject.tokenizer.decode(encoded(subject, LONG)[1:10]))
    ((nats, _),) = asked(make_model(subject, max_length=9), "loglikelihood", [pair])
    assert nats == pytest.approx(by_loop(subject, *split(subject, *pair))[0], abs=ROUNDING)
    for other in (pair, ("The", "")):
        with pytest.raises(ConfigError, match="--max_length=8: "):
            asked(make_model(subject, max_length=8), "loglikelihood", [other])


def test_a_foreign_tokenizer_is_refused(subject, tmp_path):
    encoder = Encoder(subject, tmp_path)
    encoder.vocab_size = 300
    with pytest.raises(DataError, match="more ids than the model's 300; "):
        encoder.encode(LONG * 9 + " numbers mentioned in the text")


def test_an_empty_context_begins_a_document(subject, tmp_path):
    bos, ids = subject.tokenizer.token_to_id("<bos>"), encoded(subject, "One")
    model = make_model(subject)
    assert model.prompt("", {}).inputs == (bos,)
    model.encoder = Encoder(subject, tmp_path, templated=True)
    found, expected = (asked(model, "loglikelihood", [("", text)])[0] for text in ("<bos>One", "One"))
    assert found == expected == (pytest.approx(by_loop(subject, [bos], ids[1:])[0], abs=ROUNDING), False)


def test_a_template_s_special_tokens_are_read(subject, tmp_path):
    bos, eos = (subject.tokenizer.token_to_id(name) for name in ("<bos>", "<eos>"))
    plain, chat = (Encoder(subject, tmp_path, templated=templated) for templated in (False, True))
    one, two = encoded(subject, "One")[1:], encoded(subject, " two")[1:]
    assert chat.encode("<bos>One<eos> two") == [bos, *one, eos, *two]  # its own <bos>, and no second one
    assert chat.encode("One<eos>") == [bos, *one, eos]
    assert eos not in plain.encode("One<eos>")


def test_the_ends_of_a_folder(subject, tmp_path):
    bos, eos = (subject.tokenizer.token_to_id(name) for name in ("<bos>", "<eos>"))
    bare = type(subject.tokenizer).from_str(subject.tokenizer.to_str())
    bare.post_processor = processors.ByteLevel(trim_offsets=False)
    with pytest.raises(DataError, match="no token begins or ends a document; "):
        Encoder(replace(subject, tokenizer=bare, stop_id=None), tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7, 6]}')
    subject = replace(subject, tokenizer=bare, stop_id=9)
    encoder = Encoder(subject, tmp_path)
    assert (encoder.prefix_id, encoder.stop_ids) == (9, [9, 7, 6])
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<eos>"}, "bos_token": "<bos>"}')
    encoder = Encoder(subject, tmp_path)
    assert (encoder.prefix_id, encoder.stop_ids) == (bos, [9, 7, 6, eos])
    assert encoder.ended(torch.tensor([[5, 7], [7, 5], [5, 6]]), stops=[]).tolist() == [True, False, True]
    assert encoder.decode([5, 7, 8]) == encoder.decode([5])
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="generation_config"):
        Encoder(subject, tmp_path)


def test_the_longest_come_first_and_equal_requests_run_once(subject, monkeypatch):
    lengths, greedy = [], harness.greedy
    monkeypatch.setattr(
        harness, "greedy", lambda d, ids, *a, **k: (lengths.append(ids.shape), greedy(d, ids, *a, **k))[1]
    )
    found = asked(make_model(subject, batch=2), "generate_until", [(c, {"max_gen_toks": 3}) for c in CONTEXTS * 2])
    assert found[: len(CONTEXTS)] == found[len(CONTEXTS) :]
    assert sum(rows for rows, _ in lengths) == len(CONTEXTS)
    assert [n for _, n in lengths] == sorted((n for _, n in lengths), reverse=True)


def letters(subject, text):
    return [subject.tokenizer.token_to_id(letter) for letter in text]


def scripted(subject, monkeypatch, stops, script):
    """Answer with the given tokens until they end: the answer and the steps it took."""
    steps = []

    def generate(decoder, prompts, n_tokens, stop_id, *, ended):
        ids = torch.tensor([script])
        steps.append(next((n for n in range(1, n_tokens) if bool(ended(ids[:, :n]).all())), n_tokens))
        return ids[:, : steps[0]]

    monkeypatch.setattr(harness, "greedy", generate)
    (answer,) = asked(make_model(subject), "generate_until", [("One", {"until": stops, "max_gen_toks": len(script)})])
    return answer, steps[0]


def test_a_stop_string_in_many_tokens_is_found(subject, monkeypatch):
    """Every character is a token, and a special one, which is no text, stands within."""
    bos = subject.tokenizer.token_to_id("<bos>")
    script = [*letters(subject, "abcde"), bos, *letters(subject, "fghabcdefgh")]
    assert scripted(subject, monkeypatch, ["cdefgh"], script) == ("ab", 9)


def test_a_part_of_a_character_ends_nothing(subject, monkeypatch):
    """The last 9 of 10 tokens, from the second byte of the first character on, read like the stop string."""
    text = "\N{LATIN SMALL LETTER E WITH ACUTE}?"
    script = [*encoded(subject, text)[1:], *letters(subject, "abcdefghi")]
    assert len(script) == 3 + 9  # two bytes and ?
    found = scripted(subject, monkeypatch, ["\N{REPLACEMENT CHARACTER}?"], script)
    assert found == (f"{text}abcdefghi", 12)


def test_a_context_leaves_room_for_the_answer(subject):
    model, request = make_model(subject, max_length=9), ("One of the magic numbers is 7. " * 3, {"max_gen_toks": 4})
    answer = greedy_loop(subject, encoded(subject, request[0])[-5:], 4)
    assert asked(model, "generate_until", [request]) == [subject.tokenizer.decode(answer)]
    assert model.cache_hook.found[0][2] == (9, True)
    for settings, budget in (({"max_gen_toks": 9}, 9), ({}, 16)):
        with pytest.raises(ConfigError, match=f"max_length=9: .*answers, of {budget} tokens; "):
            asked(model, "generate_until", [("One", settings)])


@pytest.mark.parametrize(
    "settings",
    [{"do_sample": True}, {"temperature": 0.7}, {"do_sample": True, "temperature": 0.0}, {"num_beams": 4}, {"x": 1}],
    ids=str,
)
def test_sampling_is_refused(subject, settings):
    with pytest.raises(ConfigError, match="generation_kwargs"):
        make_model(subject).prompt("One", settings)


@pytest.mark.parametrize(
    ("settings", "stops", "budget"),
    [
        ({"do_sample": False, "temperature": 1, "until": "x", "max_new_tokens": 7}, ("x", "<eos>"), 7),
        ({"temperature": 0.0, "num_beams": 1, "until": None}, ("<eos>",), 16),
        ({"max_tokens": 5, "max_gen_toks": 3, "until": ["", "a"]}, ("a", "<eos>"), 3),
    ],
    ids=str,
)
def test_idle_settings_of_sampling_are_taken(subject, settings, stops, budget):
    prompt = make_model(subject).prompt("One", settings)
    assert (prompt.stops, prompt.budget) == (stops, budget)
