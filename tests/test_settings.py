"""Every setting of a run is set by something that is run, or named here with what needs it; a new one needs its row."""

import ast
import re

from lab.config import Experiment
from lab.core.errors import ConfigError
from lab.core.schema import iterate_settings
from lab.core.yaml import parse_yaml
from tests.forked import ROOT

FOLDER = "a model folder: its config.json, its template"
NEEDED_BY = {  # who needs settings that nothing below sets
    FOLDER: "model.norm_eps model.attention_width model.qkv data.corpus.template",
    f"{FOLDER}; the contract": "beta_fast beta_slow attention_factor low_freq_factor high_freq_factor",
    f"{FOLDER}; rope_parameters": "truncate",
    "docs/training.md: a mirror, as the hub lacked SlimPajama at times": "data.corpus.repository",
    "docs/corpora.md, a mixture": "data.corpus.corpora data.corpus.weights",
    "docs/corpora.md": "data.corpus.config data.corpus.split data.corpus.text data.corpus.source data.changed_sources",
    "the contract": "length position.distance.leak train.backend",
    "docs/methods.md": "position.distance.released_scaling evidence.method model.layers.fraction",
    "probe-lab longrecipe, which sets it in the extension": "skip.selection",
    "docs/demand.md, S2 of docs/findings.md": "evidence.tokens weights.distance weights.control weights.fraction",
    "LOG.md: questions in every section": "data.corpus.asks",
}
NEEDED = {word if "." in word else f"position.frequency.{word}" for text in NEEDED_BY.values() for word in text.split()}
PAGES = ("README.md", "CONTRIBUTING.md", "docs/first_hour.md", "docs/plugins.md")  # which tests execute
DOTTED = re.compile(r"[a-z_]+(?:\.[a-z_0-9]+)+")
OPTION = re.compile(r"--([a-z_.0-9]+)")
SETTINGS = {name for name, *_ in iterate_settings(Experiment)}


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


def words():
    for place in ("configs", "sweeps", "eval/papers", "benchmarks", "experiments"):
        for path in sorted((ROOT / place).rglob("*.yaml")):
            try:
                yield from words_in(parse_yaml(path.read_text(), path.name))
            except ConfigError:  # a task of the harness, in a YAML of its own
                assert "!function" in path.read_text()
    for path in [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        constants = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
        for text in (text for text in constants if isinstance(text, str)):
            yield from OPTION.findall(text)
            yield from DOTTED.findall(text)
    for page in PAGES:
        yield from OPTION.findall((ROOT / page).read_text())


def test_every_setting_is_set_somewhere_or_needed_by_somebody():
    used = set()
    for word in words():  # which ends in a setting, as `extend.optim.lr` of a recipe does in optim.lr
        parts = word.strip(".").split(".")
        used |= {".".join(parts[n:]) for n in range(len(parts))} & SETTINGS
    assert SETTINGS - used == NEEDED, "set it in a config or a page that is run, or remove it; a row is of one not set"
