"""Comparing methods: settings by hand from the paper, McNemar's test against scipy, and eval.probe of several."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

import eval.engine.subject
from eval.engine.methods import METHODS, read_distance, setting
from eval.probe import main
from lab.config import load_experiment
from lab.loading import open_model, replaced_methods
from lab.results.statistics import holm
from tests.eval.answering import Reader
from tests.eval.commands import lines_of, runner
from tests.forked import ROOT


def settings_of(length, train_len):
    return {name: setting(name, train_len, length) for name in METHODS}


def test_settings_at_the_training_length_by_hand():
    """L = 2048: L' = 2/3 L = 1365; S = L/3 = 682.7, so 683; w = 1365/4 = 341; 341 + (2048 - 341)/2 = 1194.5 <= 1365."""
    found = settings_of(2048, 2048)
    assert settings_of(1024, 2048) == found
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
    assert settings_of(336, 192)["self_extend"].parameters == {"group": 2, "window": 48}, "w + (T - w)/G is 192"
    assert settings_of(288, 192)["yarn"].parameters == {"factor": 1.5, "train_len": 192}
    assert settings_of(289, 192)["yarn"].parameters == {"factor": 289 / 192, "train_len": 192}


@pytest.mark.parametrize(
    ("stated", "expected"),
    [({}, (64, 32)), ({"window": 8}, (64, 8)), ({"shift": 66}, (66, 32)), ({"shift": 9, "window": 4}, (9, 4))],
    ids=["nothing", "window", "shift", "both"],
)
def test_what_is_not_stated_of_string_is_the_same_everywhere(stated, expected):
    """L = 192: S = L/3 = 64 and W = 64 // 2, less than 128; in a config, for a folder, and in words of two commands."""
    word = "string" + ":" * bool(stated) + ",".join(f"{name}={value}" for name, value in stated.items())
    overrides = {f"position.distance.{name}": value for name, value in {"method": "string", **stated}.items()}
    config = load_experiment(ROOT / "configs/cpu_test.yaml", {"data.window": 192, **overrides}).position.distance
    _, folder = replaced_methods({"max_position_embeddings": 192}, overrides)
    compared = setting(word, 192, 192).parameters
    assert (config.shift, config.window) == (compared["shift"], compared["window"]) == expected
    assert config == folder == read_distance(word, 192, 192)


def test_holm_by_hand_and_by_its_definition():
    assert holm(pd.Series([0.01, 0.04, 0.03, 0.005, np.nan])).tolist()[:4] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(pd.Series(dtype=float)).empty
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.random(6) ** 3
        adjusted = holm(pd.Series(values)).to_numpy()
        for level in (0.01, 0.05, 0.2):  # step down: reject while the k-th smallest is within level / (m - k)
            order = np.argsort(values)
            within = values[order] <= level / (6 - np.arange(6))
            rejected = order[: np.append(within, False).argmin()]
            assert set(np.flatnonzero(adjusted <= level).tolist()) == set(rejected.tolist())


run = runner(main, "methods")


def rows_of(folder):
    return lines_of(folder, "probe")


NEEDLE = re.compile(r"One of the magic numbers is ([0-9]+)\.")
SEEN = {"plain": 60, "string": 400, "dca": 90}


@pytest.fixture
def asked(run_folder, monkeypatch):
    """Distance methods and prompts; the model sees as many last tokens as its method lets it, and says the numbers."""
    asked, tokenizer = [], open_model(run_folder).tokenizer

    def read(decoder, prompts, n_tokens, stop_id, **options):
        method = decoder.distance.method
        asked.extend((method, prompt) for prompt in prompts.tolist())
        say = lambda text: " " + ", ".join(NEEDLE.findall(text))  # noqa: E731
        return Reader(tokenizer, SEEN[method], say, stop_id)(prompts, n_tokens)

    monkeypatch.setattr(eval.engine.subject, "greedy", read)
    return asked


@pytest.fixture
def words(run_folder, tmp_path):
    sizes = ["--lengths=240", "--tests=12", "--answer_budget=24"]
    return [run_folder, *sizes, "--distance=string,rope,dca", "-o", tmp_path]


def test_methods_with_known_answers(words, asked, run_folder, tmp_path, capsys):
    tokenizer = open_model(run_folder).tokenizer
    status, out, _ = run(words, capsys)
    assert status == 0
    shown = {name: [prompt for method, prompt in asked if method == name] for name in SEEN}
    assert shown["plain"] == shown["string"] == shown["dca"]  # the same tests
    seen = {}
    for name, tokens in SEEN.items():
        seen[name] = [len(NEEDLE.findall(tokenizer.decode(prompt[-tokens:]))) for prompt in shown[name]]
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
    assert (rows[0]["passed"], rows[1]["passed"], rows[0]["versus_rope"]) == (0, 12, None)
    versus = rows[1]["versus_rope"]
    assert (versus["only_first"], versus["only_second"], versus["difference"]) == (0, 12, 1.0)
    assert versus["p"] == pytest.approx(2 / 2**12)
    only = [a - b for a, b in zip(passed["dca"], passed["plain"], strict=True)]
    assert rows[2]["versus_rope"]["only_second"] == only.count(1)
    assert rows[1]["parameters"] == {"shift": 22, "window": 11}
    assert rows[2]["parameters"] == {"train_len": 64, "chunk": 48, "window": 16}
    assert ("+1.000*" in out, len(asked)) == (True, 36)
    assert (run([*words, "--required=4"], capsys)[0], len(asked)) == (0, 36)
    strict = {row["compared_as"]: row["passed"] for row in rows_of(tmp_path) if row["required"] == 4}
    assert strict == {"rope" if name == "plain" else name: sum(n >= 4 for n in seen[name]) for name in seen}


@pytest.mark.usefixtures("asked")
def test_replaced_parameters_are_rows_of_their_own(words, tmp_path, capsys):
    own = ["string:released_scaling=true", "string:shift=30,window=8", "dca:train_len=40,chunk=20,window=10"]
    words = [word for word in words if not str(word).startswith("--distance")]
    status, out, _ = run([*words, f"--distance=rope,{','.join(own)},string"], capsys)
    assert status == 0
    rows = {row["compared_as"]: row for row in rows_of(tmp_path)}
    assert list(rows) == ["rope", *own, "string"]
    assert rows[own[0]]["parameters"] == {"shift": 22, "window": 11, "released_scaling": True}
    assert rows[own[0]]["method"] == "rope+string(shift=22,window=11,released_scaling=True)"
    assert rows[own[1]]["parameters"] == {"shift": 30, "window": 8}
    assert (rows[own[2]]["assumed_len"], rows["string"]["parameters"]) == (40, {"shift": 22, "window": 11})
    assert out.count("string:shift=30,window=8") == 1
