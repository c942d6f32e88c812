"""Comparing methods: settings by hand from the paper, McNemar's test against scipy, and eval.probe of several."""

import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import beta, false_discovery_control

import eval.engine.subject
from eval.engine.methods import METHODS, setting
from eval.engine.statistics import holm
from eval.probe import main
from lab.loading import open_model
from lab.positions import frequencies
from tests.eval.answering import Reader
from tests.eval.commands import rows_named, runner

OWN = frequencies("rope", head_dim=8, theta=1000.0)


def settings_of(length, train_len):
    return {name: setting(name, train_len, length) for name in METHODS}


def test_settings_at_the_training_length_by_hand():
    """L = 2048: L' = 2/3 L = 1365; S = L/3 = 682.7, so 683; w = 1365/4 = 341; 341 + (2048 - 341)/2 = 1194.5 <= 1365."""
    found = settings_of(2048, 2048)
    assert {name: item.parameters for name, item in found.items()} == {
        "rope": {},
        "ntk": {"factor": 1.5},
        "yarn": {"factor": 1.5, "train_len": 1365},
        "rerope": {"window": 341, "log_n": 1365},
        "self_extend": {"group": 2, "window": 341},
        "dca": {"train_len": 1365, "chunk": 1023, "window": 342},
        "string": {"shift": 683, "window": 128},
    }
    assert [found[name].assumed_len for name in METHODS] == [2048, 1365, 1365, 1365, 1365, 1365, 2048]


def test_beyond_the_training_length_methods_extrapolate_from_the_true_one():
    """L = 192: at 240 L' is 160, from 288 on 192; at 384 the factor is 2, and w + (T - w)/G = 48 + 336/3 <= 192."""
    assert settings_of(240, 192)["yarn"].parameters == {"factor": 1.5, "train_len": 160}
    far = settings_of(384, 192)
    assert (far["ntk"].parameters, far["yarn"].parameters) == ({"factor": 2.0}, {"factor": 2.0, "train_len": 192})
    assert far["self_extend"].parameters == {"group": 3, "window": 48}
    assert far["dca"].parameters == {"train_len": 192, "chunk": 144, "window": 48}
    assert (settings_of(288, 192)["yarn"].parameters) == {"factor": 1.5, "train_len": 192}
    assert (settings_of(289, 192)["yarn"].parameters) == {"factor": 289 / 192, "train_len": 192}


@pytest.mark.parametrize("train_len", [48, 192, 1000, 2048, 4096])
def test_positions_stay_within_the_assumed_length(train_len):
    for length in (train_len // 2, train_len, 5 * train_len // 4, 3 * train_len // 2, 2 * train_len):
        found = settings_of(length, train_len)
        q, k = torch.tensor([length - 1]), torch.arange(length)
        for name in ("rerope", "self_extend", "dca"):
            _, distance = found[name].build(OWN)
            assert distance.rel_pos(q, k).max() <= found[name].assumed_len
            assert found[name].assumed_len <= max(2 * length / 3, 2 * train_len / 3)
            assert found[name].assumed_len <= train_len
        if length <= train_len:
            assert found == settings_of(train_len, train_len)
        size, window = found["self_extend"].parameters.values()
        reach = Fraction(max(length, train_len) - window, 1)
        assert window + reach / size <= found["self_extend"].assumed_len < window + reach / (size - 1)
        shift, window = found["string"].parameters.values()
        assert 3 * shift >= train_len > 3 * (shift - 1)
        assert window == 128 or window == shift // 2 < 128


def test_holm_by_hand_and_by_its_definition():
    assert holm(pd.Series([0.01, 0.04, 0.03, 0.005, np.nan])).tolist()[:4] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(pd.Series(dtype=float)).empty
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.random(6) ** 3
        adjusted = holm(pd.Series(values)).to_numpy()
        for level in (0.01, 0.05, 0.2):  # step down: reject while the k-th smallest is within level / (m - k)
            order, rejected = np.argsort(values), set()
            for k, place in enumerate(order):
                if values[place] > level / (6 - k):
                    break
                rejected.add(int(place))
            assert set(np.flatnonzero(adjusted <= level).tolist()) == rejected
        assert (adjusted >= false_discovery_control(values) - 1e-12).all()


run = runner(main, "methods")
rows_of = rows_named("methods.jsonl")


NEEDLE = re.compile(r"One of the magic numbers is ([0-9]+)\.")
SEEN = {"plain": 60, "string": 400, "dca": 90}


class MethodReader:
    """A model that sees as many last tokens as its distance method lets it, and answers with the numbers there."""

    def __init__(self, monkeypatch, tokenizer):
        self.tokenizer, self.prompts, self.shown = tokenizer, 0, []
        monkeypatch.setattr(eval.engine.subject, "greedy", self)

    def __call__(self, decoder, prompts, n_tokens, stop_id, **options):
        self.prompts += len(prompts)
        self.shown.append((decoder.frequencies.method, decoder.distance.method, prompts.tolist()))
        say = lambda text: " " + ", ".join(NEEDLE.findall(text))  # noqa: E731
        return Reader(self.tokenizer, SEEN[decoder.distance.method], say, stop_id)(prompts, n_tokens)


@pytest.fixture
def words(run_folder, tmp_path):
    sizes = ["--lengths=240", "--tests=12", "--answer_budget=24"]
    return [run_folder, *sizes, "--distance=string,rope,dca", "-o", tmp_path]


def test_methods_with_known_answers(words, run_folder, tmp_path, capsys, monkeypatch):
    tokenizer = open_model(run_folder).tokenizer
    reader = MethodReader(monkeypatch, tokenizer)
    status, out, _ = run(words, capsys)
    assert status == 0
    shown = {name: [p for _, method, prompts in reader.shown if method == name for p in prompts] for name in SEEN}
    assert shown["plain"] == shown["string"] == shown["dca"]  # the same tests
    seen = {
        name: [len(NEEDLE.findall(tokenizer.decode(prompt[-tokens:]))) for prompt in shown[name]]
        for name, tokens in SEEN.items()
    }
    passed = {name: [count >= 2 for count in counts] for name, counts in seen.items()}
    rows = rows_of(tmp_path)
    assert [row["compared_as"] for row in rows] == ["rope", "string", "dca"]
    for row, name in zip(rows, ("plain", "string", "dca"), strict=True):
        n, k = 12, sum(passed[name])
        assert (row["n"], row["passed"], row["length"], row["train_len"]) == (n, k, 240, 64)
        limits = (beta.ppf(0.025, k, n - k + 1) if k else 0, beta.ppf(0.975, k + 1, n - k) if k < n else 1)
        assert (row["low"], row["high"]) == pytest.approx(limits, abs=1e-9)
        assert row["numbers_found"] == sum(seen[name]) / (4 * n)
        assert row["seconds"] > 0
    assert (rows[0]["passed"], rows[1]["passed"]) == (0, 12)
    assert rows[0]["versus_rope"] is None
    versus = rows[1]["versus_rope"]
    assert (versus["only_first"], versus["only_second"], versus["difference"]) == (0, 12, 1.0)
    assert versus["p"] == pytest.approx(2 / 2**12)
    only = [a - b for a, b in zip(passed["dca"], passed["plain"], strict=True)]
    assert rows[2]["versus_rope"]["only_second"] == only.count(1)
    assert rows[1]["parameters"] == {"shift": 22, "window": 11}
    assert rows[2]["parameters"] == {"train_len": 64, "chunk": 48, "window": 16}
    assert "+1.000*" in out
    prompts = reader.prompts
    assert run([*words, "--required=4"], capsys)[0] == 0
    assert reader.prompts == prompts == 36
    assert [row["passed"] for row in rows_of(tmp_path)[3:]] == [
        sum(count >= 4 for count in seen[name]) for name in ("plain", "string", "dca")
    ]


def test_replaced_parameters_are_rows_of_their_own(words, tmp_path, capsys, monkeypatch, run_folder):
    MethodReader(monkeypatch, open_model(run_folder).tokenizer)
    own = ["string:released_scaling=true", "string:shift=30,window=8", "dca:train_len=40,chunk=20,window=10"]
    asked = [word for word in words if not str(word).startswith("--distance")]
    status, out, _ = run([*asked, f"--distance=rope,{','.join(own)},string"], capsys)
    assert status == 0
    rows = {row["compared_as"]: row for row in rows_of(tmp_path)}
    assert list(rows) == ["rope", *own, "string"]
    assert rows[own[0]]["parameters"] == {"shift": 22, "window": 11, "released_scaling": True}
    assert rows[own[0]]["method"] == "rope+string(shift=22,window=11,released_scaling=True)"
    assert rows[own[1]]["parameters"] == {"shift": 30, "window": 8}
    assert (rows[own[2]]["assumed_len"], rows["string"]["parameters"]) == (40, {"shift": 22, "window": 11})
    assert out.count("string:shift=30,window=8") == 1
