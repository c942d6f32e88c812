"""eval.harness on tasks of local files, against the decoder in a loop and the harness's own helpers."""

import json
import math
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from scipy.stats import t as student

from eval.harness import main, spell_out
from eval.harness_results import interval
from eval.harness_scoring import Scored, Scorer, before_stops
from eval.ruler.cases import Writer
from lab.errors import ConfigError, DataError
from lab.loading import open_model
from lab.model.generate import greedy

lm_eval = pytest.importorskip("lm_eval")
ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "tests/eval/harness_tasks"
NAMES = ("lab_choice", "lab_answer", "lab_text")
ROUNDING = 1e-5  # nats: float32 passes over other rows


def documents(name):
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text().splitlines()]


def run(words, capsys):
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(scope="module", autouse=True)
def hermetic(tmp_path_factory):
    """The tasks name their files from the repository's root; what is made of them is cached elsewhere."""
    import datasets

    patch = pytest.MonkeyPatch()
    patch.chdir(ROOT)
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def done(run_folder, tmp_path_factory):
    """All three tasks, run once."""
    folder = tmp_path_factory.mktemp("harness")
    words = [str(run_folder), "--tasks", ",".join(NAMES), "--include_path", str(TASKS), "-o", str(folder)]
    assert main(words) == 0
    return folder, words


def rows_of(folder, task):
    rows = [json.loads(line) for line in (folder / "harness.jsonl").read_text().splitlines()]
    return {row["metric"]: row for row in rows if row["task"] == task}


def recorded(folder, row):
    return [json.loads(line) for line in (folder / row["cases"]).read_text().splitlines()]


@pytest.fixture(scope="module")
def model(run_folder):
    return open_model(run_folder)


@pytest.fixture
def scorer(model):
    return make_scorer(model)


def make_scorer(model, max_length=64, rows=3):
    stop = model.tokenizer.token_to_id("<eos>")
    return Scorer(
        model.decoder,
        Writer(model.tokenizer),
        lambda prompts, n_tokens: greedy(model.decoder, prompts, n_tokens, stop),
        nullcontext,
        stop,
        max_length,
        16,
        lambda length: rows,
        torch.device("cpu"),
    )


def by_loop(model, inputs, targets):
    """The log-likelihood and the greedy flag, one prefix at a time, without batches or shared passes."""
    nats, likeliest, seen = 0.0, True, list(inputs)
    for target in targets:
        with torch.no_grad():
            logits = model.decoder(torch.tensor([seen]))[0, -1].double()
        nats += float(torch.log_softmax(logits, -1)[target])
        likeliest = likeliest and int(logits.argmax()) == target
        seen.append(target)
    return nats, likeliest


def encoded(model, text):
    return model.tokenizer.encode(text).ids  # <bos> before, nothing after


def test_choices_are_scored_as_the_decoder_scores_them(done, model):
    folder, _ = done
    right, right_by_length = [], []
    for document in documents("choice"):
        context = encoded(model, document["text"])
        scores = []
        for choice in document["choices"]:
            whole = encoded(model, f"{document['text']} {choice}")
            scores.append(by_loop(model, whole[: len(context)], whole[len(context) :])[0])
        right.append(float(np.argmax(scores) == document["label"]))
        lengths = [len(choice) for choice in document["choices"]]
        right_by_length.append(float(np.argmax(np.array(scores) / lengths) == document["label"]))
    rows = rows_of(folder, "lab_choice")
    for metric, each in (("acc", right), ("acc_norm", right_by_length)):
        row = rows[metric]
        assert row["score"] == pytest.approx(np.mean(each))
        assert [test["scores"][metric] for test in recorded(folder, row)] == each
        exact = binomtest(int(sum(each)), 12).proportion_ci(0.95, "exact")
        assert (row["low"], row["high"]) == pytest.approx((exact.low, exact.high), abs=1e-6)
    assert 0 < sum(right) < 12


def test_answers_are_the_decoder_s(done, model):
    folder, _ = done
    row = rows_of(folder, "lab_answer")["exact_match"]
    stop = model.tokenizer.token_to_id("<eos>")
    expected = []
    for document in documents("answer"):
        ids = encoded(model, document["text"])
        answer = []
        while len(answer) < 12 and stop not in answer:
            with torch.no_grad():
                answer.append(int(model.decoder(torch.tensor([ids + answer]))[0, -1].argmax()))
        text = model.tokenizer.decode([token for token in answer if token != stop])
        expected.append(text.split("e")[0])
    assert [test["answer"] for test in recorded(folder, row)] == [str([text]) for text in expected]
    assert len(set(expected)) > 1
    assert row["score"] == np.mean([text == d["target"] for text, d in zip(expected, documents("answer"))])


def test_texts_are_scored_in_the_harness_s_pieces(done, model):
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    folder, _ = done
    nats, words, bytes_ = [], [], []
    for document in documents("text"):
        ids = model.tokenizer.encode(document["text"], add_special_tokens=False).ids
        bos = model.tokenizer.token_to_id("<bos>")
        windows = [make_disjoint_window(pair) for pair in get_rolling_token_windows(ids, bos, 64, 1)]
        nats.append(sum(by_loop(model, inputs, targets)[0] for inputs, targets in windows))
        words.append(len(document["text"].split()))
        bytes_.append(len(document["text"].encode()))
    assert max(len(model.tokenizer.encode(d["text"]).ids) for d in documents("text")) > 129  # three pieces
    rows = rows_of(folder, "lab_text")
    assert rows["word_perplexity"]["score"] == pytest.approx(math.exp(-sum(nats) / sum(words)), rel=1e-5)
    assert rows["byte_perplexity"]["score"] == pytest.approx(math.exp(-sum(nats) / sum(bytes_)), rel=1e-6)
    assert rows["bits_per_byte"]["score"] == pytest.approx(-sum(nats) / sum(bytes_) / math.log(2), rel=1e-6)
    for row in rows.values():
        assert row["low"] < row["score"] < row["high"]
    assert rows["bits_per_byte"]["high"] == pytest.approx(math.log2(rows["byte_perplexity"]["high"]))


def test_pieces_agree_with_the_harness_s(scorer):
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    scorer.max_length = 5
    for length in range(1, 18):
        ids = list(range(10, 10 + length))
        theirs = [make_disjoint_window(pair) for pair in get_rolling_token_windows(ids, scorer.prefix_id, 5, 1)]
        # theirs is the context, to which the targets but the last are added when it is run
        ours = [(list(piece.inputs), list(piece.targets)) for piece in scorer.pieces(ids)]
        assert [(inputs[: len(inputs) - len(targets) + 1], targets) for inputs, targets in ours] == theirs


def test_pairs_are_encoded_as_the_harness_does(scorer):
    from lm_eval.api.model import TemplateLM

    class Theirs(TemplateLM):
        eot_token_id = scorer.prefix_id
        generate_until = loglikelihood_rolling = None

        def tok_encode(self, string, add_special_tokens=None, **kwargs):
            return scorer.bare(string) if add_special_tokens is False else scorer.writer.encode(string)

        def _loglikelihood_tokens(self, requests, **kwargs):
            return [(context, continuation) for _, context, continuation in requests]

    pairs = [("The magic", " numbers"), ("The magic ", "numbers are"), ("", "One"), ("One\n\n", "two of"), ("a", "  b")]
    requests = [type("Request", (), {"args": pair}) for pair in pairs]
    assert [scorer.pair(*pair) for pair in pairs] == Theirs().loglikelihood(requests, disable_tqdm=True)


def test_log_likelihoods_equal_the_loop_s(scorer, model):
    contexts = ["The magic numbers", "One of the", "The numbers are", "", " "]
    pairs = [(c, a) for c in contexts for a in (" numbers", " numbers are", " one")]
    for (context, continuation), found in zip(pairs, scorer.loglikelihoods(pairs), strict=True):
        nats, likeliest = by_loop(model, *scorer.pair(context, continuation))
        assert found == (pytest.approx(nats, abs=ROUNDING), likeliest)
    assert scorer.cut == 0


def test_the_flag_tells_what_greedy_decoding_gives(scorer, model):
    requests, flags = [], []
    for context in ("The magic numbers", "One of the", "The numbers are"):
        ids = encoded(model, context)
        said = greedy(model.decoder, torch.tensor([ids]), 4)[0].tolist()
        for place in (None, 0, 3):  # as it is said; with another first token; with another last one
            other = [(token + 1) % 400 if k == place else token for k, token in enumerate(said)]
            requests.append(Scored((*ids, *other[:-1]), tuple(other)))
            flags.append(place is None)
    found = scorer.scores(requests, lambda n: None)
    assert [flag for _, flag in found] == flags
    for request, (nats, _) in zip(requests, found, strict=True):
        length = len(request.inputs) - len(request.targets) + 1
        assert nats == pytest.approx(by_loop(model, request.inputs[:length], request.targets)[0], abs=ROUNDING)


def test_shared_passes_are_run_once(model):
    scorer, passes = make_scorer(model), []
    hook = model.decoder.embedding.register_forward_hook(lambda module, inputs, output: passes.append(inputs[0].shape))
    requests = [Scored((0, 5, 6), (token,)) for token in (7, 8, 9)] + [Scored((0, 5), (6,)), Scored((0, 5, 6), (6, 9))]
    found = scorer.scores(requests, lambda n: None)
    hook.remove()
    assert [tuple(shape) for shape in passes] == [(1, 3), (1, 2)]  # longest first
    assert found[4][0] == pytest.approx(found[3][0] + found[2][0], abs=ROUNDING)


def test_long_contexts_lose_their_beginning_and_are_counted(model):
    scorer = make_scorer(model, max_length=9)
    context, continuation = "One of the magic numbers is 7. " * 3, "The numbers"
    before, after = scorer.pair(context, continuation)
    assert len(before) + len(after) > 10
    (nats, _), exact = scorer.loglikelihoods([(context, continuation)])[0], len(after)
    kept = (before + after)[-10:]
    assert nats == pytest.approx(by_loop(model, kept[: 10 - exact], after)[0], abs=ROUNDING)
    assert (scorer.cut, scorer.longest) == (1, 9)
    fits = before[-(10 - exact) :]
    assert len(fits) + exact == 10  # the last token is only predicted
    answer = scorer.answers([(context, {"max_gen_toks": 4})])[0]
    ids = scorer.writer.encode(context)[-5:]
    said = greedy(model.decoder, torch.tensor([ids]), 4, scorer.stop_id)[0].tolist()
    said = said[: said.index(scorer.stop_id)] if scorer.stop_id in said else said
    assert answer == model.tokenizer.decode(said)
    assert scorer.cut == 2
    with pytest.raises(ConfigError, match="max_length=9: a continuation takes"):
        scorer.loglikelihoods([("One", " numbers" * 12)])
    with pytest.raises(ConfigError, match="max_length=9: answers of 9 tokens leave no room"):
        scorer.answers([("One", {"max_gen_toks": 9})])


@pytest.mark.parametrize(
    "settings",
    [{"do_sample": True}, {"temperature": 0.7}, {"do_sample": True, "temperature": 0.0}, {"num_beams": 4}],
    ids=str,
)
def test_sampling_is_refused(scorer, settings):
    with pytest.raises(ConfigError, match="generation_kwargs"):
        scorer.answers([("One", settings)])


def test_idle_settings_of_sampling_are_taken(scorer):
    generation = scorer.generation({"do_sample": False, "temperature": 1, "until": "x", "max_new_tokens": 7})
    assert generation == (("x",), 7)
    assert scorer.generation({"temperature": 0.0}) == ((), 16)


def test_an_empty_continuation_and_a_foreign_tokenizer_are_refused(scorer):
    with pytest.raises(DataError, match="no token of its own"):
        scorer.loglikelihoods([("The", "")])
    size = scorer.decoder.cfg.vocab_size
    with pytest.raises(DataError, match="more ids than"):
        scorer.check_ids(iter([size]))


def test_stop_strings():
    assert before_stops("ab cd ef", ("ef", "c")) == "ab "
    assert before_stops("ab", ("x",)) == "ab"
    assert before_stops("xab", ("b", "x")) == ""


def test_intervals():
    values = [0.2, 0.9, 0.4, 0.5]
    half = student.ppf(0.975, 3) * np.std(values, ddof=1) / 2
    assert interval("f1", 0.5, values) == pytest.approx((0.5 - half, 0.5 + half))
    assert interval("f1", 0.51, values) is None
    assert interval("word_perplexity", 1.0, [(-1.0, 2), (-2.0, 2)]) is None
    assert interval("x", 0.5, ["a", "b"]) is None
    assert interval("acc", 1.0, [1.0]) is None


def test_rows_name_what_was_measured(done):
    folder, _ = done
    row = rows_of(folder, "lab_choice")["acc"]
    known = (row["model"], row["method"], row["checkpoint"], row["precision"], row["n"], row["length"], row["seed"])
    assert known == ("tiny", "rope+plain", "tokens-000000000004096", "float32", 12, 64, 0)
    assert row["protocol"] == f"lm-eval-{lm_eval.__version__}"
    assert row["hardware"]
    assert row["seconds"] > 0
    assert (row["cut"], row["task_version"], row["higher_is_better"], row["fewshot"]) == (0, 1.0, True, 0)
    (theirs,) = (folder / "harness-cases").glob("lab_choice-*.json")
    assert json.loads(theirs.read_text())["results"]["lab_choice"]["acc,none"] == row["score"]


def test_finished_names_are_not_run_again(done, capsys, monkeypatch):
    folder, words = done
    before = (folder / "harness.jsonl").read_text()
    monkeypatch.setattr("eval.harness.run_name", None)
    status, out, _ = run(words, capsys)
    assert status == 0
    assert (folder / "harness.jsonl").read_text() == before
    assert "lab_text" in out


def test_the_short_form_of_a_distance_method(run_folder, tmp_path, capsys):
    base = [run_folder, "--tasks=lab_choice", f"--include_path={TASKS}", "--limit=3", "-o", tmp_path]
    status, out, _ = run([*base, "--distance", "string", "--shift=4", "--window=1"], capsys)
    assert status == 0
    row = rows_of(tmp_path, "lab_choice")["acc"]
    assert row["method"] == "rope+string(shift=4,window=1)"
    assert (row["n"], row["limit"]) == (3, 3)
    assert "change anything" not in out
    status, out, _ = run([*base, "--distance=string", "--shift=60", "--window=1"], capsys)
    assert "no text was long enough for the distance method to change anything: shift=60" in out
    assert spell_out(["m", "--limit=4"]) == ["m", "--limit=4"]


def test_hugging_face_folders_are_measured(hugging_face_folder, tmp_path, capsys):
    words = [hugging_face_folder, "--tasks=lab_choice", f"--include_path={TASKS}", "--limit=2", "-o", tmp_path]
    folder = tmp_path / "model"
    shutil.copytree(hugging_face_folder, folder)
    assert run([folder, *words[1:]], capsys)[0] == 0
    assert rows_of(tmp_path, "lab_choice")["acc"]["checkpoint"] is None


def wrong(name):
    return [f"--include_path={TASKS}", f"--tasks={name}"]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--tasks="], "tasks="),
        ([f"--include_path={TASKS}/none", "--tasks=a"], "no such folder"),
        ([*wrong("lab_choice"), "--plot"], "--plot"),
        ([*wrong("lab_choice"), "--max_length=1"], "max_length=1"),
        ([*wrong("lab_choice"), "--tsks=1"], "unknown setting"),
        ([*wrong("lab_choice"), "--distance=strings"], "did you mean string?"),
        ([], "--tasks: must be set"),
    ],
    ids=str,
)
def test_wrong_input_is_a_line(run_folder, tmp_path, capsys, words, fault):
    status, _, err = run([run_folder, *words, "-o", tmp_path], capsys)
    assert status == 2
    assert fault in err
    assert "Traceback" not in err


def test_without_the_package_the_extra_is_named(run_folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    status, _, err = run([run_folder, "--tasks=lab_choice"], capsys)
    assert (status, "probe-lab[harness]" in err) == (2, True)


@pytest.mark.slow
def test_the_command_runs_on_its_own_and_knows_the_harness_s_tasks(run_folder, tmp_path):
    words = [sys.executable, "-m", "eval.harness", str(run_folder), "--tasks=hellaswg", "-o", str(tmp_path)]
    finished = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stderr.strip().splitlines()[-1].startswith("--tasks=hellaswg: no task")
