"""The probe of lab.watch: against greedy decoding of transformers, and against the lab's own command."""

import dataclasses
import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import lab
from eval import distance
from lab.core.errors import ConfigError, LabError
from lab.data.tokenizer import load_tokenizer
from lab.integrations.retrieval import build_tests, read_tokenizer, score_answers
from lab.loading import open_model
from lab.probe.needles import load_haystack
from tests.eval.commands import lines_of
from tests.opened import write_source
from tests.refusals import refused

transformers = pytest.importorskip("transformers")
TESTS = 6


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("watched") / "run", dataclasses.replace(prepared, window=96))


@pytest.fixture(scope="module")
def tokenizer(run):
    return load_tokenizer(run)


def test_teacher_forcing_retrieves_what_greedy_decoding_answers(tokenizer):
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=tokenizer.get_vocab_size(), **sizes, initializer_range=0.5)
    model = transformers.LlamaForCausalLM(config).eval()
    probe = build_tests(tokenizer, 96, haystack=None, tests=TESTS, distances=None, seed=0)
    cases, is_greedy = [], []
    for test in range(TESTS):
        case = probe.case(probe.distances[0], test)
        prompt = torch.tensor([case.prompt_ids])
        size = len(case.encoded.answer)
        answer = model.generate(prompt, max_new_tokens=size, min_new_tokens=size, do_sample=False)[0, -size:].tolist()
        if test % 2:  # another token at one place of the number, the last one too
            place = case.encoded.scored[-1 - test // 2]
            answer[place] = (answer[place] + 1) % config.vocab_size
        is_greedy.append(float(test % 2 == 0))
        cases.append(dataclasses.replace(case, encoded=case.encoded._replace(answer=answer)))
    for keeps_all in (True, False):
        logits = partial(lambda all_, ids, n: model(ids, logits_to_keep=0 if all_ else n).logits, keeps_all)
        scores = score_answers(logits, cases, probe.budget)
        assert scores[:, 0].tolist() == is_greedy


def test_the_table_is_that_of_the_distance_command(prepared, run, tokenizer, capsys):
    model = open_model(run).model
    watch = lab.watch(model, tokenizer, window=96, input="tokens", haystack=load_haystack(None, prepared, tokenizer))
    table = watch.probe(tests=TESTS)
    words = [str(run), f"--tests={TESTS}", "--digits=6", "-o", str(run / "out")]
    assert distance.main(words) == 0, capsys.readouterr().err
    rows = pd.DataFrame(lines_of(run / "out", "distance")).query("metric == 'found_by_distance'")
    assert table.columns.tolist() == ["distance", "n", "score", "low", "high", "log_prob", "f", "g"]
    for name in ("distance", "n", "score", "low", "high"):
        assert table[name].tolist() == rows[name].tolist()
    assert table["log_prob"].tolist() == pytest.approx(rows["log_prob"].tolist(), abs=1e-4)


def test_a_probe_leaves_the_model_and_its_counts_as_they_were(run, tokenizer):
    model = open_model(run).model.train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    watch = lab.watch(model, tokenizer, window=96, input="tokens")
    state = torch.get_rng_state()
    watch.probe(tests=1, distances=[40])
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert not watch.frequency().any()
    assert all(parameter.grad is None for parameter in model.parameters())


WRONG = {
    "tests=0: must be >= 1; Tests at each distance": {"tests": 0},
    'tests="8": must be a whole number; Tests at each distance': {"tests": "8"},
    "threshold=1.5: must be <= 1; Share of tests that reach asks for": {"threshold": 1.5},
    "seed=-1: must be >= 0; Seed of the tests": {"seed": -1},
    "distances=[]: must have one; omit it for 14": {"distances": []},
    "distances=[60, 40]: must rise; sort them and keep each once": {"distances": (60, 40)},
    "distances=40: must be a list; Distances to test, in tokens, rising. Default: 14": {"distances": 40},
    "distances.0=0: must be >= 1; Distances to test, in tokens, rising. Default: 14": {"distances": range(0, 50, 40)},
    "distances=[4000]: must be {} to {}, what a window of 96 tokens has room for; use a longer window or other": {
        "distances": np.array([40, 4000])
    },
    "window=20: a window of 20 tokens has no room for a test, which takes {}; use a longer window or other": {
        "window": 20
    },
    "tokenizer=NoneType: must be a tokenizers.Tokenizer or {}; for instance Tokenizer.from_file": {"tokenizer": None},
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_wrong_argument_is_raised_before_the_first_forward_by_its_own_name(run, tokenizer, rule):
    given = {"tokenizer": tokenizer, "window": 96, **WRONG[rule]}
    watch = lab.watch(Never(), given.pop("tokenizer"), window=given.pop("window"))
    with refused(rule, error=LabError):
        watch.probe(**given)


class Never(torch.nn.Module):
    def forward(self, input_ids):
        raise AssertionError("a forward")


@pytest.mark.parametrize("family", ["gpt2", "opt", "gptj", "own"])
def test_a_window_beyond_a_table_of_positions_is_rejected(tokenizer, family):
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": tokenizer.get_vocab_size()}
    sizes |= {"hidden_size": 16, "max_position_embeddings": 64, "rotary_dim": 8}
    config = transformers.AutoConfig.for_model(family.replace("own", "gpt2"), **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    if family == "own":  # a model whose config does not name its positions: the forward itself fails
        model.transformer.wpe, model.config.n_positions = torch.nn.Embedding(50, 16), 96
    with pytest.raises(ConfigError, match=r"window=96: .* lower it"):
        lab.watch(model, tokenizer, window=96).probe(tests=1)
    assert len(lab.watch(model, tokenizer, window=50).probe(tests=1)) > 1


def test_attrs_are_plain_numbers(run, tokenizer):
    table = lab.watch(open_model(run).model, tokenizer, window=96, input="tokens").probe(tests=1)
    assert json.loads(json.dumps(table.attrs)) == table.attrs


def test_a_tokenizers_truncation_does_not_cut_prompts(tokenizer):
    cut = type(tokenizer).from_str(tokenizer.to_str())
    cut.enable_truncation(5)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=cut)
    text = "one two three four five six seven eight"
    assert read_tokenizer(fast).encode(text).ids == tokenizer.encode(text).ids


class Other:
    """nanochat's interface to a tokenizer; or litgpt's, with tensors and <bos>."""

    def __init__(self, tokenizer, is_litgpt=False, change=str):
        self.tokenizer, self.is_litgpt, self.change = tokenizer, is_litgpt, change

    def encode(self, text, bos=None, eos=False):
        ids = self.tokenizer.encode(self.change(text), add_special_tokens=False).ids
        return torch.tensor([0, *ids] if bos is not False else ids) if self.is_litgpt else ids

    def decode(self, ids):
        return self.tokenizer.decode(ids.tolist() if self.is_litgpt else ids, skip_special_tokens=False)


@pytest.mark.parametrize("is_litgpt", [False, True])
def test_tokenizers_of_other_libraries_write_the_same_prompts(tokenizer, is_litgpt):
    options = {"haystack": "The caf\u00e9 is open. " * 40, "tests": 1, "distances": None, "seed": 0}
    own, other = (build_tests(each, 96, **options) for each in (tokenizer, Other(tokenizer, is_litgpt)))
    head = own.head if is_litgpt else []
    assert other.head == head
    for far in (40, 60):
        cases = [probe.case(far, 0) for probe in (own, other)]
        assert cases[0].encoded == cases[1].encoded
        if is_litgpt:  # without <bos> there is room for one token more of the haystack
            assert cases[0].prompt_ids == cases[1].prompt_ids
        assert len(cases[1].prompt_ids) + other.budget == 96
        assert tokenizer.decode(cases[1].prompt_ids[-far - 1 :]).startswith(cases[1].numbers[0])


@pytest.mark.parametrize("wrong", [object(), Other(None), "lower"])
def test_a_tokenizer_that_does_not_read_texts_back_is_rejected_at_registration(run, tokenizer, wrong):
    if wrong == "lower":
        wrong = Other(tokenizer, change=str.lower)
    with pytest.raises(ConfigError, match=f"tokenizer={type(wrong).__name__}: "):
        lab.watch(open_model(run).model, wrong, window=96, input="tokens")
