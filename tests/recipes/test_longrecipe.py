"""The recipe: how its stages are resolved, what is refused before the first of them, and how they follow each other."""

import dataclasses
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import eval.impact
import lab.merge
from lab.config import load_experiment
from lab.core.arguments import parse_overrides
from lab.core.yaml import format_yaml
from lab.data.config import TokenizerFile
from lab.loading import open_model, read_weights
from lab.longrecipe import __main__ as longrecipe
from lab.longrecipe.__main__ import main
from lab.longrecipe.stages import read_recipe, resolve_recipe
from lab.train.run import run_experiment
from tests.opened import write_source
from tests.refusals import check_faults
from tests.test_config import demo  # noqa: F401  a fixture

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.yaml"))
STAGES = {"tune": "tuned", "analyse": "impact", "extend": "extended", "replay": "replayed", "merge": "merged"}
TARGET_LEN = 160


@pytest.fixture(scope="module")
def base(prepared, tmp_path_factory):
    """A run folder with a tokenizer, as training writes it: window 64, theta 10,000."""
    return write_source(tmp_path_factory.mktemp("runs") / "base", prepared)


@pytest.fixture
def recipe(base, prepared, tmp_path):
    """The path of a recipe on the base."""
    corpus = dataclasses.asdict(dataclasses.replace(prepared.corpus, documents=400))
    train = {"tokens": 1920, "batch_tokens": 480, "micro_batch_tokens": 480, "accelerator": "cpu", "threads": 1}
    probe = {"tests": 2, "step": 176, "max_length": 176, "distance_tests": 2}
    values = {
        "folder": str(tmp_path / "recipe"),
        "base": str(base),
        "target_len": TARGET_LEN,
        "common": {
            "data": {"corpus": corpus, "held_out_frac": 0.2, "folder": prepared.folder, "look_ahead": 32},
            "optim": {"lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 1},
            "train": {**train, "precision": "fp32"},
            "probe": {**probe, "answer_budget": 24, "loss_tokens": 480},
            "track": {"every_steps": 1},
        },
        "tune": {"train": {"tokens": 960}},
        "analyse": {"windows": 10, "min_count": 2, "coverage": 0.2},
        "extend": {"run": {"seed": 3}},
        "replay": {"optim": {"lr": 2e-4}},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(format_yaml(values))
    return path


def resolved(path, *words):
    return resolve_recipe(read_recipe(path, parse_overrides(words)))


def test_stages_follow_from_the_target_and_the_base(recipe, base, tmp_path):
    found, folder = resolved(recipe), tmp_path / "recipe"
    tune, extend, replay = (found.experiments[stage] for stage in ("tune", "extend", "replay"))
    assert [x.run.path for x in (tune, extend, replay)] == [folder / "tuned", folder / "extended", folder / "replayed"]
    assert [x.start.path for x in (tune, extend, replay)] == [str(base), str(base), str(folder / "extended")]
    windows = [(x.data.window, x.data.mode) for x in (tune, extend, replay)]
    assert windows == [(160, "concatenated"), (48, "concatenated"), (64, "natural")]
    assert (tune.skip, replay.skip, extend.skip.method, extend.skip.target_len) == (None, None, "longrecipe", 160)
    assert extend.skip.selection == str(folder / "impact")
    assert [x.run.seed for x in (tune, extend, replay)] == [0, 3, 0]
    assert [(x.optim.lr, x.train.tokens) for x in (tune, extend, replay)] == [(1e-3, 960), (1e-3, 1920), (2e-4, 1920)]
    own = TokenizerFile(path=str(base / "tokenizer.json"), eos="<eos>")
    assert [x.data.tokenizer for x in (tune, extend, replay)] == [own] * 3, "so that shards can be shared"
    assert len({x.model for x in (tune, extend, replay)}) == 1
    assert found.settings["analyse"]["length"] == 160
    models, replayed = [str(base), str(folder / "replayed")], str(folder / "replayed")
    merge = {"models": models, "weights": [0.5, 0.5], "positions": replayed, "train_len": 160}
    assert found.settings["merge"] == merge


def test_what_a_stage_says_comes_before_what_follows(recipe, tmp_path):
    words = ["--tune.data.window=128", "--replay.data.window=32", "--extend.data.corpus.words=24"]
    method = {"method": "dynamic_ntk", "factor": 2.5, "train_len": 64}
    words += [f"--common.position.frequency.{key}={value}" for key, value in method.items()]
    found = resolved(recipe, *words, "--analyse.length=99", "--merge.weights=[0.25,0.75]")
    assert {stage: x.data.window for stage, x in found.experiments.items()} == {"tune": 128, "extend": 48, "replay": 32}
    assert [x.data.corpus.words for x in found.experiments.values()] == [16, 24, 16]
    assert found.experiments["replay"].position == found.experiments["extend"].position
    assert (found.settings["analyse"]["length"], found.settings["merge"]["weights"]) == (99, [0.25, 0.75])
    assert found.settings["merge"]["train_len"] is None, "the method's length stays its own"
    other = resolved(recipe, "--replay.data.corpus.name=text", f"--replay.data.corpus.path={tmp_path}")
    assert other.experiments["replay"].data.corpus.name == "text", "another corpus replaces the common one whole"
    assert other.experiments["tune"].data.corpus.documents == 400


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_short_and_resolves(path, request):
    request.getfixturevalue("demo")
    assert len(path.read_text().splitlines()) < 40
    found = resolved(path)
    extend = found.experiments["extend"]
    assert (Path(found.recipe.folder).name, extend.data.window) == (path.stem, round(0.3 * extend.skip.target_len))
    assert found.experiments["replay"].optim.lr < extend.optim.lr
    assert found.settings["merge"]["weights"] == [0.5, 0.5]


OWN = "is set by the recipe; leave it out"
WRONG = {
    "--tune.data.window=1 --replay.optim.lr=0": ["tune.data.window=1: ", "replay.optim.lr=0: "],
    "--replay.model.d_model=8": ["replay.model.d_model=8: the weights of start.path={folder}/extended have 16; "],
    "--extend.data.window=160": ["extend.skip.target_len=160: must be > data.window=160, "],
    "--replay.start.path=x --common.run.name=x": [f"common.run.name: {OWN}", f"replay.start: {OWN}"],
    "--extend.skip.method=pose": [f"extend.skip: {OWN}"],
    "--merge.weights=[0.5,0.6]": ["merge.weights=[0.5, 0.6]: must sum to 1, not 1.1; "],
    "--base=/nowhere": ["base=/nowhere: no such folder; "],
    "--methods=[pose,pose]": ["methods=['pose', 'pose']: must name at least one method, each once; "],
    "--replay.data.corpus.name=slimpajama": ["replay.data.corpus.name=slimpajama: not prepared in {shards}/slimpajama"],
    "--folder=/dev/null/x": ["folder=/dev/null/x: cannot be written (Not a directory); name another folder"],
}


@pytest.mark.parametrize(("words", "starts"), WRONG.items(), ids=WRONG)
def test_a_mistake_is_found_before_the_first_stage(words, starts, recipe, prepared, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(longrecipe, "run_nodes", lambda *_: pytest.fail("a stage was started"))
    assert main([str(recipe), *words.split()]) == 2
    named = {"folder": tmp_path / "recipe", "shards": prepared.folder}
    check_faults(capsys.readouterr().err.splitlines(), [start.format(**named) for start in starts])


def fit(words):
    assert words[1:] == ["--resume"]
    return run_experiment(load_experiment(Path(words[0])), True, "again")


@pytest.fixture
def here(monkeypatch):
    """Run stages in this process, and list their commands; `statuses` are those of stages that are not run at all."""
    started, statuses = [], {}
    commands = {"lab.fit": fit, "eval.impact": eval.impact.main, "lab.merge": lab.merge.main}

    def run_nodes(nodes):
        for node in nodes:
            started.append(node.command[node.command.index("-m") + 1 :])
            module, *words = started[-1]
            status = statuses.pop(node.name) if node.name in statuses else commands[module](words)
            if status:
                return status
        return 0

    monkeypatch.setattr(longrecipe, "run_nodes", run_nodes)
    return started, statuses


def test_the_whole_recipe(recipe, base, tmp_path, capsys, here):
    """All stages on a model of some thousand weights; a second call runs nothing, changed settings are refused."""
    folder, (started, _) = tmp_path / "recipe", here
    words = [str(recipe), "--common.model.theta=50000.0", "--merge.weights=[0.25,0.75]"]
    assert main(words) == 0
    assert [command[0] for command in started] == ["lab.fit", "eval.impact", "lab.fit", "lab.fit", "lab.merge"]
    assert {place.name for place in folder.iterdir()} == {*STAGES.values(), *(f"{stage}.yaml" for stage in STAGES)}
    impact = json.loads((folder / "impact" / "impact.json").read_text())
    assert impact["options"]["length"] == TARGET_LEN
    assert (folder / "extended" / "impact.json").read_bytes() == (folder / "impact" / "impact.json").read_bytes()
    metrics = [json.loads(line) for line in (folder / "extended" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["samples"] >= 40
    counts = np.load(folder / "extended" / "counts.npz")
    assert len(counts["f"]) == TARGET_LEN
    assert counts["f"][48:].any(), "distances beyond a sample"
    original, replayed, merged = (read_weights(place) for place in (base, folder / "replayed", folder / "merged"))
    for name, weight in merged.items():
        expected = 0.25 * original[name].double() + 0.75 * replayed[name].double()
        torch.testing.assert_close(weight.double(), expected, rtol=1e-6, atol=1e-7)
    opened = open_model(folder / "merged")
    assert (opened.train_len, opened.decoder.frequencies.theta) == (TARGET_LEN, 50_000.0)
    started.clear()
    capsys.readouterr()
    assert main([*words, "--replay.train.threads=2"]) == 0
    assert capsys.readouterr().out == f"{folder}: all stages are done, 0 of them now\n"
    assert main([*words, "--tune.optim.lr=0.01"]) == 2
    check_faults(capsys.readouterr().err.splitlines()[-1:], ["optim.lr=0.01: "])
    (tmp_path / "recipe" / "replayed").rename(tmp_path / "old")
    started.clear()
    assert main(words) == 0
    assert [command[0] for command in started] == ["lab.fit", "lab.merge"], "what follows is made again"


def test_a_baseline_needs_no_analysis(recipe, tmp_path, capsys, here):
    started, statuses = here
    statuses.update({"random": 0, "random_replay": 75})
    assert main([str(recipe), "--methods=[random,pose]"]) == 75
    assert "the same command continues" in capsys.readouterr().err
    assert [Path(words[1]).name for words in started] == ["random.yaml", "random_replay.yaml"]
    extended = load_experiment(tmp_path / "recipe" / "random.yaml")
    assert (extended.skip.selection, extended.skip.target_len, extended.run.seed) == ("random", TARGET_LEN, 3)


def test_a_launcher_starts_the_training_stages(recipe, tmp_path, capfd, monkeypatch):
    code = "import sys; print(*sys.argv[1:]); sys.exit(3)"
    assert main([str(recipe), "--launcher", shlex.join([sys.executable, "-c", code])]) == 3
    assert f"-m lab.fit {tmp_path / 'recipe' / 'tune.yaml'} --resume" in capfd.readouterr().out.splitlines()
    assert main([str(recipe), "--launcher", "torchrunn --nproc_per_node 8"]) == 2
    line = "torchrunn: cannot be started (No such file or directory); name another command"
    assert line in capfd.readouterr().err.splitlines()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert main([str(recipe)]) == 2
    assert capfd.readouterr().err.startswith("SLURM_STEP_NUM_TASKS=4: 4 copies")
