"""How eval.harness answers: stop strings, the tokens that end a document, room, and settings of sampling."""

import time

import pytest
import torch

from eval.harness.answers import Speaker, before_stops, read_generation
from eval.harness.encoding import Encoder, Ends
from lab.errors import ConfigError
from lab.loading import open_model
from lab.model.generation.generate import greedy
from tests.eval.harnessed import encoded, make_encoder, make_speaker, values

CONTEXTS = ("The magic", "One of the", "The numbers are", "mentioned in one", "What", "The", "in the texts below")


@pytest.fixture(scope="module")
def model(run_folder):
    return open_model(run_folder)


def whole_answer(model, context, budget):
    """The answer without any stop, one prefix at a time."""
    ids, answer = encoded(model, context), []
    while len(answer) < budget:
        with torch.no_grad():
            answer.append(int(model.decoder(torch.tensor([ids + answer]))[0, -1].argmax()))
    stop = model.tokenizer.token_to_id("<eos>")
    return answer[: answer.index(stop)] if stop in answer else answer


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("stops", [[], ["e"], ["s", "th", "number"], ["\n\n", "zz"]], ids=str)
def test_answers_end_before_the_first_stop_string(model, stops, rows):
    found = values(
        make_speaker(model, rows=rows).answers([(c, {"until": stops, "max_gen_toks": 30}) for c in CONTEXTS])
    )
    for context, answer in zip(CONTEXTS, found, strict=True):
        text = model.tokenizer.decode(whole_answer(model, context, 30))
        assert answer == min((text.split(stop)[0] for stop in stops), key=len, default=text)
    assert len(set(found)) > 3


def test_the_longest_come_first_and_seconds_are_shared(model):
    started = time.perf_counter()
    batches = list(make_speaker(model, rows=2).answers([(context, {"max_gen_toks": 3}) for context in CONTEXTS * 2]))
    lengths = [outcome.tokens for batch in batches for outcome in batch.values()]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 3
    assert sum(outcome.seconds for batch in batches for outcome in batch.values()) < time.perf_counter() - started


def counted(model, stops, answers):
    """Run a speaker whose model says what is given, and count the tokens that it was asked for."""
    encoder, steps = make_encoder(model), []

    def generate(prompts, n_tokens, ended):
        ids = torch.tensor(answers)
        for step in range(1, n_tokens):
            if bool(ended(ids[:, :step]).all()):
                break
        steps.append(step)
        return ids[:, :step]

    speaker = Speaker(encoder, generate, lambda n: len(answers), 16)
    batches = list(speaker.answers([("One", {"until": stops, "max_gen_toks": len(answers[0])})] * len(answers)))
    return values(iter(batches)), steps, batches[0][0].tokens


def test_rows_end_with_the_stop_string(model):
    stop = "\nQuestion:"
    said = model.tokenizer.encode(f" four. {stop} numbers are in the", add_special_tokens=False).ids
    end = next(n for n in range(len(said)) if stop in model.tokenizer.decode(said[:n]))
    (text,), steps, tokens = counted(model, [stop], [said])
    assert (text, steps) == (" four. ", [end])
    assert tokens == len(encoded(model, "One")) + end
    assert end < len(said) - 3


def test_a_stop_string_in_many_tokens_is_found(model):
    """Every character is a token, and a special one that says nothing stands within."""
    letters = [model.tokenizer.token_to_id(letter) for letter in "abcdefgh"]
    bos = model.tokenizer.token_to_id("<bos>")
    said = [*letters[:5], bos, *letters[5:], *letters]
    (text,), steps, _ = counted(model, ["cdefgh"], [said])
    assert (text, steps) == ("ab", [9])


def test_a_part_of_a_character_ends_nothing(model):
    letters = [model.tokenizer.token_to_id(letter) for letter in "abcdefghi"]
    said = [*model.tokenizer.encode("\N{LATIN SMALL LETTER E WITH ACUTE}?", add_special_tokens=False).ids, *letters]
    assert len(said) == 3 + 9  # two bytes and ?
    (text,), steps, _ = counted(model, ["\N{REPLACEMENT CHARACTER}?"], [said])
    assert steps == [11]  # though the last 9 of 10 tokens, from the second byte on, read like the stop string
    assert text == "\N{LATIN SMALL LETTER E WITH ACUTE}?abcdefgh"


def test_every_token_that_ends_a_document_ends_an_answer(model):
    ends = Encoder(model.tokenizer, Ends((), (1, 301, 302)), 64, 400)
    ended = Speaker(ends, None, lambda n: 1, 16).ended([])
    assert ended(torch.tensor([[5, 302], [301, 5], [5, 6]])).tolist() == [True, False, False]
    assert ends.decode([5, 302, 7]) == ends.decode([5])


def test_the_name_of_the_end_ends_an_answer(model):
    said = make_encoder(model).bare("One <eos> two")
    assert model.tokenizer.token_to_id("<eos>") not in said
    (text,), _, _ = counted(model, [], [said])
    assert text == "One "


def test_rooms_and_cuts(model):
    speaker = make_speaker(model, max_length=9)
    context = "One of the magic numbers is 7. " * 3
    (batch,) = speaker.answers([(context, {"max_gen_toks": 4})])
    ids = speaker.encoder.encode(context)[-5:]
    said = greedy(model.decoder, torch.tensor([ids]), 4, speaker.encoder.stop_ids[0])[0].tolist()
    assert batch[0].value == speaker.encoder.decode(said)
    assert (batch[0].cut, batch[0].tokens) == (True, 9)
    assert batch[0].seconds > 0
    with pytest.raises(ConfigError, match="max_length=9: answers of 9 tokens leave no room"):
        list(speaker.answers([("One", {"max_gen_toks": 9})]))
    with pytest.raises(ConfigError, match="max_length=9: answers of 16 tokens leave no room"):
        list(speaker.answers([("One", {})]))


@pytest.mark.parametrize(
    "settings",
    [{"do_sample": True}, {"temperature": 0.7}, {"do_sample": True, "temperature": 0.0}, {"num_beams": 4}, {"x": 1}],
    ids=str,
)
def test_sampling_is_refused(settings):
    with pytest.raises(ConfigError, match="generation_kwargs"):
        read_generation(settings, 16)


def test_idle_settings_of_sampling_are_taken():
    generation = read_generation({"do_sample": False, "temperature": 1, "until": "x", "max_new_tokens": 7}, 16)
    assert generation == (("x",), 7)
    assert read_generation({"temperature": 0.0, "num_beams": 1}, 16) == ((), 16)
    assert read_generation({"max_tokens": 5, "max_gen_toks": 3}, 16).budget == 3


def test_stop_strings_are_cut_one_after_the_other():
    from lm_eval.models.utils import postprocess_generated_text

    for text, stops in (
        ("ab cd ef", ("ef", "c")),
        ("axbxc", ("x",)),
        ("ab", ("x",)),
        ("xab", ("b", "x")),
        ("abc", ("bc", "ab")),
    ):
        theirs = postprocess_generated_text(text, list(stops), None)
        assert before_stops(text, stops) == theirs
