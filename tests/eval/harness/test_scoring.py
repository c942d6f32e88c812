"""How eval.harness encodes, scores and answers, against the decoder in a loop and by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import processors

from eval.engine.subject import Subject, build_subject
from eval.harness.__main__ import HarnessOptions
from eval.harness.model import harness_model, open_tokenizer
from lab.export import main as export
from lab.loading import open_model

Instance = pytest.importorskip("lm_eval.api.instance").Instance
pytestmark = pytest.mark.usefixtures("harness_files")
CONTEXTS = ("The magic", "One of the", "The numbers are", "mentioned in one", "What", "The", "in the texts below")


def subject_of(folder):
    return build_subject(open_model(folder), folder, torch.device("cpu"))


@pytest.fixture(scope="module")
def subject(run_folder):
    return subject_of(run_folder)


def make_model(subject, folder=Path("none"), **options):
    defaults = {"tasks": (), "max_length": 64, "batch": 3}
    return harness_model(subject, folder, HarnessOptions(**{**defaults, **options}))


def asked(model, kind, arguments):
    requests = [Instance(kind, {}, args, number, ("t", number, 1)) for number, args in enumerate(arguments)]
    return getattr(model, kind)(requests)


def encoded(subject, text):
    return subject.tokenizer.encode(text).ids  # <bos> before, nothing after


@torch.no_grad()
def by_loop(subject, inputs, targets):
    """The log-likelihood and the greedy flag, one prefix at a time, without batches or shared passes."""
    prefixes = [torch.tensor([[*inputs, *targets[:n]]]) for n in range(len(targets))]
    logits = [subject.model.decoder(prefix)[0, -1].double() for prefix in prefixes]
    nats = [float(torch.log_softmax(each, -1)[target]) for each, target in zip(logits, targets, strict=True)]
    return sum(nats), [int(each.argmax()) for each in logits] == targets


@torch.no_grad()
def greedy_loop(subject, ids, budget):
    """The most likely tokens after some, one prefix at a time, before the first one that ends a document."""
    answer = []
    while len(answer) < budget:
        answer.append(int(subject.model.decoder(torch.tensor([[*ids, *answer]]))[0, -1].argmax()))
        if answer[-1] == subject.stop_id:
            return answer[:-1]
    return answer


@pytest.mark.parametrize("family", [None, "gpt_neox"])
def test_prompts_of_one_length_are_answered_side_by_side_and_none_is_padded(family, subject, foreign, monkeypatch):
    prompts, generate = [], Subject.generate
    subject = subject if family is None else subject_of(foreign(family))
    monkeypatch.setattr(Subject, "generate", lambda s, ids, *a: (prompts.append(ids), generate(s, ids, *a))[1])
    found = asked(make_model(subject, batch=7), "generate_until", [(c, {"max_gen_toks": 5}) for c in CONTEXTS])
    wanted = sorted(encoded(subject, context) for context in CONTEXTS)
    assert sorted(row for each in prompts for row in each.tolist()) == wanted
    assert len(prompts) == len({*map(len, wanted)})
    assert found == [subject.tokenizer.decode(greedy_loop(subject, encoded(subject, c), 5)) for c in CONTEXTS]
    inputs, targets = encoded(subject, CONTEXTS[0]), encoded(subject, " magic numbers")[-2:]
    ((nats, likeliest),) = make_model(subject)._loglikelihood_tokens([(("", ""), inputs, targets)])
    assert (pytest.approx(nats, abs=1e-5), likeliest) == by_loop(subject, inputs, targets)


def test_the_tokens_that_begin_and_end_a_document(subject, tmp_path, monkeypatch):
    bos = subject.tokenizer.token_to_id("<bos>")
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7, 6]}')
    assert open_tokenizer(replace(subject, stop_id=9), tmp_path, template=None)[1:] == (bos, [9, 7, 6])
    bare = type(subject.tokenizer).from_str(subject.tokenizer.to_str())
    bare.post_processor = processors.ByteLevel(trim_offsets=False)
    subject = replace(subject, tokenizer=bare, stop_id=9)
    assert open_tokenizer(subject, tmp_path, template=None)[1:] == (9, [9, 7, 6])
    answers, rules = torch.tensor([[5, 7, 8], [5, 8, 5]]), []
    monkeypatch.setattr(Subject, "generate", lambda *words: rules.append(words[-1]) or answers)
    prompts, mask = torch.tensor([[3], [4]]), torch.ones(2, 1, dtype=torch.long)
    found = make_model(subject, tmp_path)._model_generate(prompts, 4, ["zz"], attention_mask=mask)
    assert found.tolist() == [[3, 5, 9, 9], [4, 5, 8, 5]]
    assert rules[0](torch.tensor([[5, 7], [7, 5], [5, 6]]), None).tolist() == [True, False, True]


TOL = 2e-5  # nats: sums of up to 60 float32 terms, of two implementations
PAIRS = [("The magic", " numbers"), ("The magic ", "numbers are"), ("", "One of the"), (" ", "x"), ("One\n\n", "two")]
PAIRS += [("One of the magic numbers is 7. " * 12, " The numbers"), ("The numbers", " are"), ("The numbers", " one")]
PAIRS += [("The", " numbers are mentioned in one of the texts below")]


@pytest.fixture(scope="module")
def folder(run_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("export") / "tiny"
    assert export([str(run_folder), "-o", str(place)]) == 0
    return place


def hugging_face(folder, **options):
    """Build the harness's class, as it is used from its own command line."""
    pytest.importorskip("accelerate")  # what it needs beside transformers
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=1, **options)


@pytest.fixture(scope="module")
def peer(folder):
    return hugging_face(folder)


@pytest.fixture(scope="module")
def ours(folder):
    return make_model(subject_of(folder), folder, max_length=None)


def test_continuations(ours, peer):
    found = asked(ours, "loglikelihood", PAIRS)
    expected = asked(peer, "loglikelihood", PAIRS)
    assert [nats for nats, _ in found] == pytest.approx([nats for nats, _ in expected], abs=TOL)
    assert [flag for _, flag in found] == [flag for _, flag in expected]


def test_texts(subject, ours, folder):
    ids = subject.tokenizer.encode("One of the magic numbers is 7. " * 30).ids
    lengths = (1, 63, 64, 65, 128, 129, 200)
    texts = [(subject.tokenizer.decode(ids[1 : length + 1]),) for length in lengths]
    assert [len(ours.tok_encode(*text, add_special_tokens=False)) for text in texts] == list(lengths)
    expected = asked(hugging_face(folder, add_bos_token=False), "loglikelihood_rolling", texts)
    assert asked(ours, "loglikelihood_rolling", texts) == pytest.approx(expected, abs=TOL * 10)


SETTINGS = [
    {"until": [], "max_gen_toks": 9, "temperature": 1, "do_sample": False},
    {"until": "numbers", "max_new_tokens": 16},
    {"until": ["text", "s", "th"], "max_gen_toks": 24, "temperature": 0.0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers(ours, peer, settings):
    contexts = ["The magic", "One of the magic numbers is 7. " * 12, "The numbers are ", "What", "mentioned in one"]
    requests = [(context, settings) for context in contexts]
    expected = asked(peer, "generate_until", requests)
    assert asked(ours, "generate_until", requests) == expected
    assert len(set(expected)) > 2
