"""Configs and command lines by nobody's good will: read, or refused in a line for each fault."""

import contextlib
import json
import math
import os
import re
import signal
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lab import cli
from lab.config import Experiment, load_experiment
from lab.core.arguments import parse_overrides, settings_lines
from lab.core.errors import LabError
from lab.core.yaml import format_yaml, parse_yaml
from lab.counts import SavedCounts
from lab.fit import read_arguments
from lab.model.huggingface.config import model_settings
from lab.model.sharding import build
from lab.train.run import assemble
from lab.train.starting import Start
from tests.fits import CONFIG
from tests.forked import ROOT
from tests.refusals import check_faults, refused
from tests.test_command import main_of

TEXT = CONFIG.read_text()
LONGEST = 700  # characters of a line
HANG_S = 120  # sixty times what the slowest takes
PLACE = "made.yaml"
FIELDS = [  # settings that no file or line can hold
    (f'{TEXT}run: {{name: "a\\0b"}}\n', 'run.name="a\\u0000b": must be a plain folder name'),
    (f'{TEXT}run: {{folder: "a\\nb"}}\n', 'run.folder="a\\nb": must be a path'),
    (f'{TEXT}run: {{name: "\\ud800"}}\n', "settings: must be text and numbers"),
    (f"{TEXT}? [a, b]\n: 3\n", "settings: must be text and numbers"),
    (f"run: &run [*run]\n{TEXT}", f"{PLACE}: line 1: not YAML (anchors and aliases"),
    (f"{TEXT}# {'x' * 2**20}", f"{PLACE}: not YAML (longer than"),
]
WORDS = {  # what once crashed, hung or trained, on a command line
    f"--run.seed={'9' * 4000}": "run.seed=999999999999999999999999...",
    f"--run.seed={2**64}": f"run.seed={2**64}: must be <= {2**63 - 1}",
    "--train.tokens=1e23": "train.tokens=1e+23: must be ",
    "--model.d_model=262144 --model.d_ff=1048576 --model.n_layers=1024": "model.d_model=262144: makes ",
    f"--run.name={'x' * 300}": "run.name=xxxxxxxxxxxxxxxxxxxxxxxx...",
    f"--run.folder={'x' * 300}": "run.folder=xxxxxxxxxxxxxxxxxxxxxxxx...",
    f"--data.folder={'x/' * 3000}": "data.folder=x/x/",
    f"--start.path={'x' * 5000}": "start.path=xxxxxxxxxxxxxxxxxxxxxxxx...",
}
EVAL = [name for name, (module, _) in cli.commands().items() if module.startswith("eval") and name != "report"]
HARNESS = ["none", "--tasks=lab_choice", f"--include_path={ROOT}/tests/eval/harness_tasks"]
FIRST = {
    "positions": ["string", "--shift=8", "--length=24"],
    "frequency": ["--positions=8"],
    "harness": HARNESS,
    "generate": ["no_run", "text"],
}


@contextlib.contextmanager
def unless_it_hangs():
    def give_up(number, frame):
        raise TimeoutError(f"still running after {HANG_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def lines_of(main, words, capsys):
    """Run a command; return its status and what it printed about faults."""
    with unless_it_hangs():
        status = main(words)
    return status, capsys.readouterr().err.splitlines()


def check_refusal(lines):
    assert lines
    for line in lines:
        assert len(line) <= LONGEST
        assert "; " in line, line


FILES = [(text, "", start) for text, start in FIELDS]
LINES = [(TEXT, words, start) for words, start in WORDS.items()]


@pytest.mark.parametrize(("text", "words", "start"), FILES + LINES, ids=lambda text: text[-40:])
def test_a_hostile_value_is_one_line(tmp_path, capsys, monkeypatch, text, words, start):
    monkeypatch.chdir(tmp_path)
    Path(PLACE).write_text(text)
    status, lines = lines_of(read_arguments, [PLACE, *words.split()], capsys)
    assert status == 2
    check_faults(lines, [start])
    check_refusal(lines)


def test_what_a_config_writes_is_read_back_and_plain_words_stay_words():
    values = {"a": ["1e5", "off", "010", "0x1f", "2001-01-01", "59:59", "~", "1_0", ".5", "="], "b": [1e-5, 1e20, 7]}
    assert parse_yaml(format_yaml(values), "x") == values
    plain = parse_yaml("[off, no, 010, 0x1f, 2001-01-01, 59:59, 1_0, +3, 4e-4, .5, 1., -.inf, null, true]", "x")
    assert plain == ["off", "no", 10, 31, "2001-01-01", "59:59", 10, 3, 4e-4, 0.5, 1.0, -math.inf, None, True]


def test_a_file_that_would_fill_the_memory_is_one_line(tmp_path, monkeypatch):
    """A sparse config.json of a model; and counts that unpack to more than they may, or state more than any memory."""
    (tmp_path / "config.json").write_bytes(b"")
    os.truncate(tmp_path / "config.json", 2**26)
    with refused(f"{tmp_path / 'config.json'}: cannot be read "):
        model_settings(tmp_path)
    path = tmp_path / "counts.npz"
    np.savez_compressed(path, lengths=np.zeros(2**24), f=np.zeros(2**24))
    monkeypatch.setattr("lab.counts.saved.MOST_BYTES", 2**27, raising=False)
    with refused(f"{path}: cannot be read "):
        SavedCounts.read(path)
    with zipfile.ZipFile(path, "w") as packed, packed.open("tokens.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (2**50,)})
    with refused(f"{path}: cannot be read ({{}})"):
        SavedCounts.read(path)


VALUES = st.sampled_from(
    [
        *(None, True, 0, -1, 3, 1.5, 2**31, 2**63, 2**64, 10**30, 1e-300, 1e300, float("nan"), float("inf"), "", "~"),
        *("x", "auto", "null", "1e9x", "9" * 500, "\u202e", "é" * 300, "../..", "/dev/zero", "a\nb"),
        *([], [1], [[]], {}, {"a": 1}),
    ]
)


def places(values, prefix=()):
    for key, value in values.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from places(value, (*prefix, key))


PLACES = list(places(parse_yaml(TEXT, "test")))
KEYS = sorted(re.findall(r"^  --([a-z_.0-9]+)=", "\n".join(settings_lines(Experiment, True)), re.M))


@st.composite
def mutated(draw):
    """Draw a config with up to three keys taken out, renamed, moved, repeated or given another value."""
    values, twice = parse_yaml(TEXT, "test"), ""
    for place in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3, unique=True)):
        *above, key = place
        node = values
        for name in above:
            node = node.get(name) if isinstance(node, dict) else None
        if not isinstance(node, dict) or key not in node:
            continue
        value = node.pop(key)
        kind = draw(st.sampled_from(["delete", "rename", "set", "set", "set", "nest", "repeat"]))
        if kind in ("rename", "nest"):
            node[draw(st.sampled_from([f"{key}s", "ü", "name", "method", 3, True, None]))] = value
        if kind == "nest":
            node[key] = {key: value}
        if kind in ("set", "repeat"):
            node[key] = draw(VALUES)
        twice = f"{place[0]}: 1\n" if kind == "repeat" else twice
    return format_yaml(values) + twice


def check_config(place, text, *words):
    path = place / "made.yaml"
    path.write_text(text)
    with unless_it_hangs():
        try:
            experiment = load_experiment(path, parse_overrides(words))
            (place / "again.yaml").write_text(experiment.to_yaml())
            assert load_experiment(place / "again.yaml") == experiment
        except LabError as error:
            check_refusal(str(error).splitlines())
            return
    with contextlib.suppress(LabError), unless_it_hangs():  # build what a run builds before it reads data
        run = assemble(Start(experiment))
        if experiment.model.n_parameters() < 10**6 and experiment.model.n_layers < 9:
            build(run.recipe.make, run.recipe.seed, run.recipe.start)


def word_of(key, value):
    return f"--{key}={json.dumps(value, ensure_ascii=False)}"


@pytest.fixture
def attempts(repeats, record_property):
    """Run a check of what is drawn, as often as is asked for: attempts(check, *strategies)."""
    record_property("count", n := repeats(20, 200))
    fixtures = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    once = {"phases": [Phase.generate], "deadline": None, "database": None, "derandomize": True}
    repeated = settings(max_examples=n, suppress_health_check=fixtures, **once)
    return lambda check, *drawn: repeated(given(*drawn)(check))()


def test_a_mutated_config_is_read_and_built_or_refused(tmp_path, attempts):
    attempts(lambda text: check_config(tmp_path, text), mutated())


def test_a_mutated_setting_is_read_and_built_or_refused(tmp_path, attempts):
    attempts(lambda key, value: check_config(tmp_path, TEXT, word_of(key, value)), st.sampled_from(KEYS), VALUES)


def test_a_mutated_command_line_of_eval_is_run_or_refused(tmp_path, capsys, monkeypatch, attempts):
    monkeypatch.chdir(tmp_path)
    places = []
    for name in EVAL:
        main_of(name)(["--help=all"])
        own = re.findall(r"^  --([a-z_.0-9]+)=", capsys.readouterr().out, re.M)
        places += [(name, key) for key in (*own, "position.distance.window", "zz")]
    read_all_its_tasks = {("harness", "tasks"), ("harness", "include_path")}
    places = [place for place in places if place not in read_all_its_tasks]

    def check(place, value):
        name, key = place
        first = [word for word in FIRST.get(name, ["no_run"]) if not word.startswith(f"--{key}=")]
        status, lines = lines_of(main_of(name), [*first, word_of(key, value)], capsys)
        if status == 2:
            check_refusal(lines)
            named = [key.split(".")[-1], *(Path(word.split("=")[0].lstrip("-")).name for word in first)]
            assert any(name in line for name in named for line in lines), lines
        else:
            assert not isinstance(status, int) or status == 0

    attempts(check, st.sampled_from(places), VALUES)
