"""Every setting of a run is set by something that is run, or named here with what needs it; a new one needs its row."""

import ast
import re

import pytest

from lab.config import Experiment
from lab.core.errors import ConfigError
from lab.core.schema import settings_in
from lab.core.yaml import parse_yaml
from tests.forked import ROOT

NEEDED = {  # settings that nothing below sets: who needs them
    "model.norm_eps": "a model folder: rms_norm_eps",
    "model.attention_width": "a model folder: head_dim",
    "data.corpus.repository": "docs/training.md: a mirror, as the hub lacked SlimPajama at times",
    **dict.fromkeys((f"data.corpus.{name}" for name in ("config", "split", "text", "source")), "docs/corpora.md"),
    "data.changed_sources": "docs/corpora.md: files that change after their shards were made",
    "data.corpus.template": "a model folder: the chat template that its conversations follow",
    "position.frequency.length": "the contract: dynamic_ntk takes length",
    "position.frequency.beta_fast": "a model folder: yarn's rope_parameters; the contract",
    "position.frequency.beta_slow": "a model folder: yarn's rope_parameters; the contract",
    "position.frequency.truncate": "a model folder: yarn's rope_parameters",
    "position.frequency.attention_factor": "a model folder: rope_parameters; the contract",
    "position.frequency.low_freq_factor": "a model folder: llama3's rope_parameters; the contract",
    "position.frequency.high_freq_factor": "a model folder: llama3's rope_parameters; the contract",
    "position.frequency.short_factor": "a model folder: longrope's rope_parameters",
    "position.frequency.long_factor": "a model folder: longrope's rope_parameters",
    "position.distance.released_scaling": "docs/methods.md: what the released code adds to STRING",
    "position.distance.leak": "the contract: leaky_rerope(window, leak)",
    "skip.selection": "probe-lab longrecipe, which sets it in the extension",
    "evidence.method": "docs/methods.md: the methods compared by asked",
    "evidence.tokens": "probe-lab demand --evidence.tokens=4",
    "evidence.least": "docs/methods.md: the table of suffix by what must match",
    "weights.distance": "docs/demand.md: the branches of S1",
    "weights.control": "docs/demand.md: near-masked branches and matched controls",
    "weights.fraction": "experiments.window: the conditions of S2",
    "data.corpus.asks": "LOG.md: questions in every section, or in the last",
    "data.schedule.start": "LOG.md: growing blocks",
    "data.schedule.tokens": "LOG.md: growing blocks",
    "model.qkv": "a model folder: norms of queries and keys",
    "model.layers.fraction": "docs/methods.md: rope on a part of the pairs",
    "train.backend": "the contract: attention's backends, flash and xformers among them",
}
PAGES = ("README.md", "CONTRIBUTING.md", "docs/first_hour.md", "docs/plugins.md")  # which tests execute
DOTTED = re.compile(r"[a-z_]+(?:\.[a-z_0-9]+)+")
OPTION = re.compile(r"--([a-z_.0-9]+)")


def settings():
    return {name for name, *_ in settings_in(Experiment)}


def words_in(value, prefix=""):
    """List the dotted keys in what YAML holds, with their parents, and the options of commands in its texts."""
    if isinstance(value, dict):
        for key, inner in value.items():
            name = prefix if key in ("value", "values") else f"{prefix}.{key}"  # of a sweep's parameter
            yield name
            yield from words_in(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from words_in(inner, prefix)
    elif isinstance(value, str):
        yield from OPTION.findall(value)


def words_of_yaml():
    for place in ("configs", "sweeps", "eval/papers", "benchmarks", "experiments"):
        for path in sorted((ROOT / place).rglob("*.yaml")):
            try:
                yield from words_in(parse_yaml(path.read_text(), path.name))
            except ConfigError:  # a task of the harness, in a YAML of its own
                assert "!function" in path.read_text()


def words_of_code_and_pages():
    for path in [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        constants = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
        for text in (text for text in constants if isinstance(text, str)):
            yield from OPTION.findall(text)
            yield from DOTTED.findall(text)
    for page in PAGES:
        yield from OPTION.findall((ROOT / page).read_text())


def setting_of(word, names):
    """Return the setting that a dotted word ends in, as `extend.optim.lr` of a recipe does in optim.lr."""
    parts = word.strip(".").split(".")
    return next((name for n in range(len(parts)) if (name := ".".join(parts[n:])) in names), None)


@pytest.fixture(scope="module")
def used():
    names = settings()
    return {setting_of(word, names) for word in (*words_of_yaml(), *words_of_code_and_pages())} - {None}


def test_every_setting_is_set_somewhere_or_needed_by_somebody(used):
    assert settings() - used - NEEDED.keys() == set(), "set it in a config or a page that is run, or remove it"


def test_every_row_is_of_a_setting_that_nothing_sets(used):
    assert NEEDED.keys() - settings() == set()
    assert NEEDED.keys() & used == set()
