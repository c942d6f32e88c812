"""How eval.harness answers: stop strings, the tokens that end a document, room, and settings of sampling."""

import pytest
import torch

from eval.harness import model as harness
from eval.harness.answers import ends_at, read_generation
from eval.harness.encoding import Encoder
from lab.errors import ConfigError
from tests.eval.harness.parts import asked, encoded, greedy_loop, make_model

pytest.importorskip("lm_eval")
CONTEXTS = ("The magic", "One of the", "The numbers are", "mentioned in one", "What", "The", "in the texts below")


@pytest.mark.parametrize(
    ("rows", "stops"), [(1, []), (3, ["e"]), (16, ["s", "th", "number"]), (3, ["\n\n", "zz"])], ids=str
)
def test_answers_end_before_the_first_stop_string(subject, stops, rows):
    model = make_model(subject, rows=rows)
    requests = [(context, {"until": stops, "max_gen_toks": 30}) for context in CONTEXTS]
    found = asked(model, "generate_until", requests)
    for context, answer in zip(CONTEXTS, found, strict=True):
        text = subject.tokenizer.decode(greedy_loop(subject, encoded(subject, context), 30))
        assert answer == min((text.split(stop)[0] for stop in stops), key=len, default=text)
    assert len(set(found)) > 3


def test_the_longest_come_first_and_equal_requests_run_once(subject, monkeypatch):
    lengths, greedy = [], harness.greedy
    monkeypatch.setattr(
        harness, "greedy", lambda d, ids, *a, **k: (lengths.append(ids.shape), greedy(d, ids, *a, **k))[1]
    )
    found = asked(make_model(subject, rows=2), "generate_until", [(c, {"max_gen_toks": 3}) for c in CONTEXTS * 2])
    assert found[: len(CONTEXTS)] == found[len(CONTEXTS) :]
    assert sum(rows for rows, _ in lengths) == len(CONTEXTS)
    assert [n for _, n in lengths] == sorted((n for _, n in lengths), reverse=True)


def scripted(subject, monkeypatch, stops, said):
    """Answer with the tokens that are given, until they are at their end: the answer and the steps it took."""
    steps = []

    def generate(decoder, prompts, n_tokens, stop_id, *, ended):
        ids = torch.tensor([said])
        steps.append(next((n for n in range(1, n_tokens) if bool(ended(ids[:, :n]).all())), n_tokens))
        return ids[:, : steps[0]]

    monkeypatch.setattr(harness, "greedy", generate)
    model = make_model(subject)
    (answer,) = asked(model, "generate_until", [("One", {"until": stops, "max_gen_toks": len(said)})])
    ((_, _, (tokens, _, _)), _) = model.cache_hook.found
    assert tokens == len(encoded(subject, "One")) + steps[0]
    return answer, steps[0]


def test_rows_end_with_the_stop_string(subject, monkeypatch):
    stop = "\nQuestion:"
    said = encoded(subject, f" four. {stop} numbers are in the")[1:]
    end = next(n for n in range(len(said)) if stop in subject.tokenizer.decode(said[:n]))
    assert scripted(subject, monkeypatch, [stop], said) == (" four. ", end)
    assert end < len(said) - 3


def letters(subject, text):
    return [subject.tokenizer.token_to_id(letter) for letter in text]


def test_a_stop_string_in_many_tokens_is_found(subject, monkeypatch):
    """Every character is a token, and a special one, which is no text, stands within."""
    bos = subject.tokenizer.token_to_id("<bos>")
    said = [*letters(subject, "abcde"), bos, *letters(subject, "fghabcdefgh")]
    assert scripted(subject, monkeypatch, ["cdefgh"], said) == ("ab", 9)


def test_a_part_of_a_character_ends_nothing(subject, monkeypatch):
    """The last 9 of 10 tokens, from the second byte of the first character on, read like the stop string."""
    text = "\N{LATIN SMALL LETTER E WITH ACUTE}?"
    said = [*encoded(subject, text)[1:], *letters(subject, "abcdefghi")]
    assert len(said) == 3 + 9  # two bytes and ?
    found = scripted(subject, monkeypatch, ["\N{REPLACEMENT CHARACTER}?"], said)
    assert found == (f"{text}abcdefghi", 12)


def test_the_name_of_the_end_ends_an_answer(subject, monkeypatch):
    said = encoded(subject, "One <eos> two")[1:]
    assert subject.stop_id not in said
    assert scripted(subject, monkeypatch, [], said)[0] == "One "


def test_every_token_that_ends_a_document_ends_an_answer(subject):
    encoder = Encoder(subject.tokenizer, [], [1, 301, 302], 400)
    assert ends_at(encoder, [])(torch.tensor([[5, 302], [301, 5], [5, 6]])).tolist() == [True, False, False]
    assert encoder.decode([5, 302, 7]) == encoder.decode([5])


def test_a_context_leaves_room_for_the_answer(subject):
    model = make_model(subject, max_length=9)
    request = ("One of the magic numbers is 7. " * 3, {"max_gen_toks": 4})
    said = greedy_loop(subject, encoded(subject, request[0])[-5:], 4)
    assert asked(model, "generate_until", [request]) == [subject.tokenizer.decode(said)]
    assert model.cache_hook.found[0][2][:2] == (9, True)
    for settings, budget in (({"max_gen_toks": 9}, 9), ({}, 16)):
        with pytest.raises(ConfigError, match=f"max_length=9: answers of {budget} tokens .*; raise"):
            asked(model, "generate_until", [("One", settings)])


@pytest.mark.parametrize(
    "settings",
    [{"do_sample": True}, {"temperature": 0.7}, {"do_sample": True, "temperature": 0.0}, {"num_beams": 4}, {"x": 1}],
    ids=str,
)
def test_sampling_is_refused(settings):
    with pytest.raises(ConfigError, match="generation_kwargs"):
        read_generation(settings, 16)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"do_sample": False, "temperature": 1, "until": "x", "max_new_tokens": 7}, (("x",), 7)),
        ({"temperature": 0.0, "num_beams": 1, "until": None}, ((), 16)),
        ({"max_tokens": 5, "max_gen_toks": 3, "until": ["", "a"]}, (("a",), 3)),
    ],
    ids=str,
)
def test_idle_settings_of_sampling_are_taken(settings, expected):
    assert read_generation(settings, 16) == expected
