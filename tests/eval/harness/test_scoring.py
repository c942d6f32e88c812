"""How eval.harness encodes, scores and answers, against the decoder in a loop and by hand."""

from dataclasses import replace

import pytest
import torch
from tokenizers import processors

from eval.harness import model as harness
from eval.harness.model import Served, kept, open_tokenizer
from tests.eval.harness.parts import ROUNDING, asked, by_loop, encoded, greedy_loop, make_model, split

pytest.importorskip("lm_eval")
LONG = "One of the magic numbers is 12345678."
CONTEXTS = ("The magic", "One of the", "The numbers are", "mentioned in one", "What", "The", "in the texts below")


def test_scores_and_flags_are_those_of_the_decoder(subject):
    pairs = [("The magic", " numbers"), ("", "One of the"), ("The numbers", " are"), ("One", " of"), ("One", " one")]
    for found, pair in zip(asked(make_model(subject), "loglikelihood", pairs), pairs, strict=True):
        nats, likeliest = by_loop(subject, *split(subject, *pair))
        assert found == (pytest.approx(nats, abs=ROUNDING), likeliest)


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
def test_the_middle_of_long_contexts_is_cut_as_longbench_does(room, places):
    """The first and the last half of the tokens that fit, rounded down."""
    assert kept(list(range(12)), room, "middle") == list(places)
    assert kept(list(range(12)), room, "left") == list(range(12 - room, 12))


def test_prompts_of_one_length_are_answered_side_by_side_and_none_is_padded(subject, monkeypatch):
    prompts, greedy = [], harness.greedy
    monkeypatch.setattr(harness, "greedy", lambda d, ids, *a, **k: (prompts.append(ids), greedy(d, ids, *a, **k))[1])
    found = asked(make_model(subject, batch=7), "generate_until", [(c, {"max_gen_toks": 5}) for c in CONTEXTS])
    wanted = sorted(encoded(subject, context) for context in CONTEXTS)
    assert sorted(row for each in prompts for row in each.tolist()) == wanted
    assert len(prompts) == len({len(ids) for ids in wanted})
    assert found == [subject.tokenizer.decode(greedy_loop(subject, encoded(subject, c), 5)) for c in CONTEXTS]


def test_the_tokens_that_begin_and_end_a_document(subject, tmp_path):
    bos, eos = (subject.tokenizer.token_to_id(name) for name in ("<bos>", "<eos>"))
    bare = type(subject.tokenizer).from_str(subject.tokenizer.to_str())
    bare.post_processor = processors.ByteLevel(trim_offsets=False)
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7, 6]}')
    subject = replace(subject, tokenizer=bare, stop_id=9)
    assert open_tokenizer(subject, tmp_path, chat=False)[1:] == (9, [9, 7, 6])
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<eos>"}, "bos_token": "<bos>"}')
    tokenizer, prefix_id, stop_ids = open_tokenizer(subject, tmp_path, chat=False)
    assert (prefix_id, stop_ids) == (bos, [9, 7, 6, eos])
    served = Served(subject, tokenizer, stop_ids)
    assert served.ended(torch.tensor([[5, 7], [7, 5], [5, 6]]), stops=[]).tolist() == [True, False, True]
    assert served.blanked(torch.tensor([[5, 7, 8], [5, 8, 5]])).tolist() == [[5, 9, 9], [5, 8, 5]]


def letters(subject, text):
    return [subject.tokenizer.token_to_id(letter) for letter in text]


def scripted(subject, monkeypatch, stops, script):
    """Answer with the given tokens until they end: the answer and the steps it took."""
    steps = []

    def generate(decoder, prompts, n_tokens, stop_id, *, ended):
        ids = torch.tensor([script])
        steps.append(next((n for n in range(1, n_tokens) if bool(ended(ids[:, :n], None).all())), n_tokens))
        return ids[:, : steps[0]]

    monkeypatch.setattr(harness, "greedy", generate)
    (answer,) = asked(make_model(subject), "generate_until", [("One", {"until": stops, "max_gen_toks": len(script)})])
    return answer, steps[0]


def test_a_stop_string_in_many_tokens_is_found(subject, monkeypatch):
    """Every character is a token, and a special one, which is no text, stands within."""
    bos = subject.tokenizer.token_to_id("<bos>")
    script = [*letters(subject, "abcde"), bos, *letters(subject, "fghabcdefgh")]
    assert scripted(subject, monkeypatch, ["cdefgh"], script) == ("ab", 9)
