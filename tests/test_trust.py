"""What other people's files name is not executed: code needs --trust, or a command line that names it."""

import json

import pytest

from eval.demand import main as demand
from eval.perplexity import main as perplexity
from lab.core.yaml import format_yaml
from lab.export import main as export
from lab.fit import read_arguments
from lab.longrecipe.__main__ import main as longrecipe
from lab.model.huggingface.pretrained import find_tensors
from lab.prepare import main as prepare
from lab.results.store import Store
from lab.sweep.__main__ import main as sweep
from tests.fits import CONFIG
from tests.forked import ROOT
from tests.opened import sealed, write_source
from tests.refusals import refused
from tests.test_contributing import METHOD
from tests.test_plugins import restored  # noqa: F401

START = ["${env}", "${interpreter}", "-m", "lab.fit", str(CONFIG)]
SEED = {"run.seed": {"value": 0}}
SWEEPS = {
    "values": (START, {"plugins": {"value": ["mine.py"]}}),
    "words": ([*START, "--plugins=[mine.py]"], SEED),
    "config": ([*START[:4], "mine.yaml"], SEED),
}
CASES = {
    "config": (read_arguments, "mine.yaml", "--print_config"),
    "prepare": (prepare, "mine.yaml"),
    "demand": (demand, "mine.yaml"),
    "run": (perplexity, "run"),
    "run_config": (read_arguments, "run/config.yaml", "--print_config"),
    "export": (perplexity, "exported"),
    "export_again": (read_arguments, "exported/experiment.yaml", "--print_config"),
    "recipe": (longrecipe, "recipe.yaml", "--base=run"),
    **{f"sweep_{name}": (sweep, f"{name}.yaml", "--dry_run") for name in SWEEPS},
}


@pytest.fixture
def files(prepared, tmp_path, monkeypatch):
    """Write files that name code which leaves a file, `ran`, in the current folder."""
    monkeypatch.chdir(tmp_path)
    run = write_source(tmp_path / "run", prepared)
    assert export([str(run), "-o", "exported"]) == 0
    (tmp_path / "mine.py").write_text(f"{METHOD}\nopen('ran', 'w')\n")
    for path in ("run/config.yaml", "exported/experiment.yaml"):
        (tmp_path / path).write_text((tmp_path / path).read_text().replace("plugins: []", "plugins: [mine.py]"))
        (tmp_path / path).parent.joinpath("plugins").mkdir()
        (tmp_path / path).parent.joinpath("plugins", "mine.py").symlink_to(tmp_path / "mine.py")
    sealed(run)
    (tmp_path / "mine.yaml").write_text(f"{CONFIG.read_text()}\nplugins: [mine.py]\n")
    recipe = (ROOT / "configs" / "recipes" / "longrecipe_demo.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(recipe.replace("common:", "common:\n  plugins: [mine.py]", 1))
    for name, (command, parameters) in SWEEPS.items():
        sweep_file = {"method": "grid", "command": [*command, "${args}"], "parameters": parameters}
        (tmp_path / f"{name}.yaml").write_text(format_yaml(sweep_file))
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_nothing_that_a_file_names_is_executed(files, capsys, case):
    main, *words = CASES[case]
    capsys.readouterr()
    status = main(words)
    assert not (files / "ran").exists()
    lines = capsys.readouterr().err.splitlines()  # one, of a recipe one for each of its stages
    assert (status, {line.count("add --trust") for line in lines}) == (2, {1}), lines


@pytest.mark.parametrize("words", [["mine.yaml", "--trust"], [str(CONFIG), "--plugins=[mine.py]"]])
def test_what_a_command_line_names_or_trusts_is_executed(files, words):
    assert read_arguments([*words, "--print_config"]) == 0
    assert (files / "ran").exists()


def test_a_link_among_results_is_left_alone(tmp_path):
    (tmp_path / "own.txt").write_text("a line without an end")
    link = Store(tmp_path, "recall", {}).path
    link.unlink()
    link.symlink_to(tmp_path / "own.txt")
    with refused(f"{link}: is a link"):
        Store(tmp_path, "recall", {})
    assert (tmp_path / "own.txt").read_text() == "a line without an end"


@pytest.mark.parametrize("listed", [["a"], {"w": 3}, {"w": "../a"}, {"w": "/a"}])
def test_an_index_of_weights_names_files_of_its_folder(tmp_path, listed):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    with refused(f"{tmp_path / 'model.safetensors.index.json'}: names "):
        find_tensors(tmp_path)
