"""The lab's decoder behind the harness's class, against the class on transformers' model with the same weights."""

import pytest

from lab.export import main as export
from tests.eval.harness.parts import asked, by_loop, instances, make_model, subject_of

pytest.importorskip("lm_eval")
pytest.importorskip("accelerate")  # what hf needs beside transformers
pytestmark = pytest.mark.usefixtures("harness_files")
TOL = 2e-5  # nats: sums of up to 60 float32 terms, of two implementations
PAIRS = [("The magic", " numbers"), ("The magic ", "numbers are"), ("", "One of the"), (" ", "x"), ("One\n\n", "two")]
PAIRS += [("One of the magic numbers is 7. " * 12, " The numbers"), ("The numbers", " are"), ("The numbers", " one")]
PAIRS += [("The", " numbers are mentioned in one of the texts below")]


@pytest.fixture(scope="module")
def folder(run_folder, tmp_path_factory):
    """The run as a Hugging Face folder."""
    place = tmp_path_factory.mktemp("export") / "tiny"
    assert export([str(run_folder), "-o", str(place)]) == 0
    return place


def hugging_face(folder, **options):
    """Build the harness's class, as it is used from its own command line."""
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
    expected = peer.loglikelihood(instances("loglikelihood", PAIRS), disable_tqdm=True)
    assert [nats for nats, _ in found] == pytest.approx([nats for nats, _ in expected], abs=TOL)
    assert [flag for _, flag in found] == [flag for _, flag in expected]


def test_texts(subject, ours, folder):
    ids = subject.tokenizer.encode("One of the magic numbers is 7. " * 30).ids
    lengths = (1, 63, 64, 65, 128, 129, 200)
    texts = [(subject.tokenizer.decode(ids[1 : length + 1]),) for length in lengths]
    assert [len(ours.tok_encode(*text, add_special_tokens=False)) for text in texts] == list(lengths)
    expected = asked(hugging_face(folder, add_bos_token=False), "loglikelihood_rolling", texts)
    assert asked(ours, "loglikelihood_rolling", texts) == pytest.approx(expected, abs=TOL * 10)


def test_a_text_does_not_begin_twice(subject, ours, peer):
    """Left to itself, hf scores the token that begins a document after the same token."""
    (found,), (expected,) = (asked(model, "loglikelihood_rolling", [("The numbers",)]) for model in (ours, peer))
    bos, *ids = subject.tokenizer.encode("The numbers").ids
    assert expected == pytest.approx(by_loop(subject, [bos], [bos, *ids])[0], abs=TOL)
    assert found == pytest.approx(by_loop(subject, [bos], ids)[0], abs=TOL)


@pytest.mark.parametrize(
    "settings",
    [
        {"until": [], "max_gen_toks": 9, "temperature": 1, "do_sample": False},
        {"until": "numbers", "max_new_tokens": 16},
        {"until": ["text", "s", "th"], "max_gen_toks": 24, "temperature": 0.0},
    ],
    ids=str,
)
def test_answers(ours, peer, settings):
    contexts = ["The magic", "One of the magic numbers is 7. " * 12, "The numbers are ", "What", "mentioned in one"]
    requests = [(context, settings) for context in contexts]
    expected = asked(peer, "generate_until", requests)
    assert asked(ours, "generate_until", requests) == expected
    assert len(set(expected)) > 2
