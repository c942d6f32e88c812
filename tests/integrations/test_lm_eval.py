"""The task of lm-evaluation-harness against lab.watch, which test_retrieval.py compares with `probe-lab distance`."""

import importlib
import json
import subprocess
import sys

import pytest
import torch

import lab
from lab.core.errors import ConfigError
from lab.integrations import retrieval
from tests.forked import ROOT

transformers = pytest.importorskip("transformers")
lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("accelerate")
TESTS, WINDOW, TOL = 4, 96, 2e-5  # nats, of float32 logits
CONTINUATION = "\n\nThe number is"


@pytest.fixture(scope="module")
def folder(bpe, tmp_path_factory):
    """A folder of transformers whose tokenizer adds <bos>, and encodes a blank before a digit by itself."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("reach") / "llama"
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"vocab_size": bpe.get_vocab_size(), "max_position_embeddings": WINDOW, "initializer_range": 0.5}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(path)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<bos>", eos_token="<eos>")
    fast.save_pretrained(path)
    return path


def read_tasks(**metadata):
    from lm_eval.tasks import TaskManager

    path = str(ROOT / "lab/integrations/tasks")
    return TaskManager(include_path=path, metadata={"window": WINDOW, **metadata}, include_defaults=False)


def evaluate(model, folder, task="lab_reach", limit=None, **metadata):
    manager = read_tasks(tests=TESTS, **{"pretrained": str(folder), **metadata})
    results = lm_eval.simple_evaluate(
        model=model, model_args={"pretrained": str(folder), "dtype": "float32"}, tasks=[task], task_manager=manager,
        device="cpu", batch_size=3, limit=limit, log_samples=True,
    )  # fmt: skip
    return results["results"][task], results["samples"][task]


def column(results, score, distances):
    return [results[f"{score}@{d:02},none"] for d in distances]


@pytest.mark.slow  # reads all tasks of the harness
def test_the_harness_own_command(folder, tmp_path, monkeypatch, capsys):
    include = subprocess.run(
        [sys.executable, "-m", "lab.integrations.lm_eval"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    metadata = json.dumps({"window": WINDOW, "tests": TESTS, "distances": [40, 70]})
    words = f"lm-eval run --model hf --model_args pretrained={folder},dtype=float32 --device cpu --tasks lab_reach"
    words = [*words.split(), "--include_path", include, "--metadata", metadata, "-o", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    importlib.import_module("lm_eval.__main__").cli_evaluate()
    assert "|score@70" in capsys.readouterr().out
    (file,) = tmp_path.rglob("results_*.json")
    results, _ = evaluate("hf", folder, distances=[40, 70])
    found = json.loads(file.read_text())["results"]["lab_reach"]
    assert column(found, "log_prob", [40, 70]) == column(results, "log_prob", [40, 70])


class Copier(transformers.LlamaForCausalLM):
    """Answers with the first number of the text if it is at most MOST tokens before the answer, else with noise."""

    MOST = 60

    def forward(self, input_ids, **_):
        logits = torch.sin(torch.arange(self.config.vocab_size) * (1.0 + input_ids[..., None]))
        for row, ids in enumerate(input_ids.tolist()):
            digits = [self.is_digit[token] for token in ids]
            first = digits.index(True)
            last = digits.index(False, first)
            for t in range(last, len(ids)):
                begun = next(k for k in range(t + 1) if not digits[t - k])  # digits of the answer so far
                if first + begun < last and t - begun - first <= self.MOST:
                    logits[row, t, ids[first + begun]] = 2
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


@pytest.mark.parametrize("task", ["lab_reach", "lab_reach_continuation"])
def test_a_model_that_copies_reaches_as_far_as_by_the_lab(folder, bpe, tmp_path, task, monkeypatch):
    from lm_eval.models.huggingface import HFLM

    copier = Copier.from_pretrained(folder).eval()
    copier.is_digit = [bpe.id_to_token(k).isdigit() for k in range(bpe.get_vocab_size())]
    # Some sentences end before a break, which other tokenizers join to the stop.
    haystack = " ".join(f"the {'sea' if n % 3 else 'boat'} is {'blue' if n % 5 else 'far'}." for n in range(400))
    (tmp_path / "essays.txt").write_text(haystack)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = HFLM(pretrained=copier, tokenizer=tokenizer, add_bos_token=True, batch_size=3, max_length=WINDOW)
    distances = [45, 60, 61, 70]
    results, samples = evaluate(model, folder, task, haystack=str(tmp_path / "essays.txt"), distances=distances, seed=3)
    if task == "lab_reach_continuation":
        monkeypatch.setattr(retrieval.build_tests, "__kwdefaults__", {"question": CONTINUATION})
    watch = lab.watch(copier, bpe, window=WINDOW, haystack=haystack)
    table = watch.probe(TESTS, distances=distances, seed=3)
    for score in ("score", "low", "high"):
        assert column(results, score, distances) == table[score].tolist()
    assert column(results, "score", distances) == [1, 1, 0, 0]
    assert column(results, "log_prob", distances) == pytest.approx(table["log_prob"].tolist(), abs=TOL)
    for name in ("reach", "reach_low", "reach_high"):
        assert results[f"{name},none"] == table.attrs[name]
    end = "What are" if task == "lab_reach" else CONTINUATION
    assert all(end in sample["arguments"][0][0] for sample in samples)


def test_a_limit_takes_tests_of_all_distances(folder):
    results, samples = evaluate("hf", folder, limit=4, distances=[45, 60])
    assert [(s["doc"]["distance"], s["doc"]["test"]) for s in samples] == [(45, 0), (60, 0), (45, 1), (60, 1)]
    assert column(results, "high", [45]) == [pytest.approx(1 - 0.025**0.5)]  # none of two: (1 - p)^2 = 0.025


def test_what_is_missing_is_named(folder):
    for metadata, message in (
        ({"window": None}, r"window=None: must be .*--metadata='{\"window\": 2048}'"),
        ({"pretrained": None}, "tokenizer: is missing; pass it by --model_args tokenizer=FOLDER"),
        ({"window": 20}, "window of 20 tokens has no room"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate("hf", folder, **metadata)


@pytest.mark.parametrize("short", [2, 30])
def test_a_model_that_would_cut_tests_is_rejected(folder, short):
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=str(folder), device="cpu", max_length=WINDOW - short)
    with pytest.raises(ConfigError, match=f"window={WINDOW}: is longer than the model, .*max_length"):
        evaluate(model, folder, distances=[45])


def test_a_slice_that_cuts_tokens_is_an_error():
    """vLLM's form, by its length."""
    from lab.integrations.lm_eval import Uncut

    tokens = Uncut(range(6), 10) + [6, 7, 8]  # noqa: RUF005
    assert tokens[-10:] == [*range(9)]
    with pytest.raises(ConfigError, match="window=10"):
        tokens[-9:]


def test_examples_are_rejected(folder):
    task = read_tasks(pretrained=str(folder)).load(["lab_reach"])["tasks"]["lab_reach"]
    with pytest.raises(ConfigError, match="num_fewshot=2: would be ignored"):
        task.fewshot_context(task.test_docs()[0], num_fewshot=2)
