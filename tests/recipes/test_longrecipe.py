"""The recipe: how its stages are resolved, what is refused before the first of them, and how they follow each other."""

import dataclasses
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import eval.impact.__main__
import lab.merge
from lab import longrecipe
from lab.config import load_experiment
from lab.data.config import TokenizerFile
from lab.data.preparation import prepare, shard_folder
from lab.errors import ConfigError
from lab.loading import open_model, read_weights
from lab.longrecipe import main
from lab.recipes import read_recipe, resolve
from lab.settings import parse_overrides
from lab.train.session import run_experiment
from tests.forked import LIMIT_S, Forked
from tests.opened import write_run
from tests.refusals import check_faults
from tests.test_config import demo  # noqa: F401  a fixture

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.yaml"))
STAGES = {"tune": "tuned", "analyse": "impact", "extend": "extended", "replay": "replayed", "merge": "merged"}
TARGET_LEN = 160


@pytest.fixture(scope="module")
def base(prepared, tmp_path_factory):
    """A run folder with a tokenizer, as training writes it: window 64, theta 10,000."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "base", prepared)
    shutil.copy(shard_folder(prepared) / "tokenizer.json", folder)
    (folder / "config.yaml").write_text(load_experiment(folder / "config.yaml").to_yaml())
    return folder


@pytest.fixture
def write(base, prepared, tmp_path):
    """A function that writes a recipe on the base and returns its path."""

    def write(**sections):
        optim = {"lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 1}
        train = {"tokens": 1920, "batch_tokens": 480, "micro_batch_tokens": 480, "accelerator": "cpu", "threads": 1}
        values = {
            "folder": str(tmp_path / "recipe"),
            "base": str(base),
            "target_len": TARGET_LEN,
            "common": {
                "data": {
                    "corpus": dataclasses.asdict(dataclasses.replace(prepared.corpus, documents=400)),
                    "held_out_frac": 0.2,
                    "folder": prepared.folder,
                    "look_ahead": 32,
                },
                "optim": optim,
                "train": {**train, "precision": "fp32"},
                "probe": {"tests": 2, "step": 176, "max_length": 176, "answer_budget": 24, "loss_tokens": 480},
                "track": {"every_steps": 1},
            },
            "tune": {"train": {"tokens": 960}},
            "analyse": {"windows": 10, "min_count": 2, "coverage": 0.2},
            "extend": {"run": {"seed": 3}},
            "replay": {"optim": {"lr": 2e-4}},
            **sections,
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
        return path

    return write


def resolved(path, *words):
    return resolve(read_recipe(path, parse_overrides(words)))


# what the stages are


def test_stages_follow_from_the_target_and_the_base(write, base, tmp_path):
    found, folder = resolved(write()), tmp_path / "recipe"
    tune, extend, replay = (found.experiments[stage] for stage in ("tune", "extend", "replay"))
    assert [x.run.path for x in (tune, extend, replay)] == [folder / "tuned", folder / "extended", folder / "replayed"]
    assert [x.start.path for x in (tune, extend, replay)] == [str(base), str(base), str(folder / "extended")]
    assert [(x.data.window, x.data.mode) for x in (tune, extend, replay)] == [
        (160, "concatenated"),
        (48, "concatenated"),
        (64, "natural"),
    ]
    assert (tune.skip, replay.skip) == (None, None)
    assert vars(extend.skip) == {
        "target_len": 160,
        "method": "longrecipe",
        "selection": str(folder / "impact"),
        "random_sentences": False,
    }
    assert [x.run.seed for x in (tune, extend, replay)] == [0, 3, 0]
    assert [(x.optim.lr, x.train.tokens) for x in (tune, extend, replay)] == [(1e-3, 960), (1e-3, 1920), (2e-4, 1920)]
    own = TokenizerFile(path=str(base / "tokenizer.json"), eos="<eos>")
    assert [x.data.tokenizer for x in (tune, extend, replay)] == [own] * 3, "so that shards can be shared"
    assert len({x.model for x in (tune, extend, replay)}) == 1
    assert found.settings["analyse"]["length"] == 160
    assert found.settings["merge"] == {
        "models": [str(base), str(folder / "replayed")],
        "weights": [0.5, 0.5],
        "positions": None,
        "train_len": 160,
    }


def test_what_a_stage_says_comes_before_what_follows(write):
    words = [
        "--tune.data.window=128",
        "--replay.data.window=32",
        "--extend.data.corpus.words=24",
        "--analyse.length=99",
    ]
    found = resolved(write(), *words, "--merge.weights=[0.25,0.75]")
    windows = {stage: experiment.data.window for stage, experiment in found.experiments.items()}
    assert windows == {"tune": 128, "extend": 48, "replay": 32}
    assert [found.experiments[stage].data.corpus.words for stage in windows] == [16, 24, 16]
    assert (found.settings["analyse"]["length"], found.settings["merge"]["weights"]) == (99, [0.25, 0.75])


def test_another_corpus_replaces_the_common_one_whole(write, tmp_path):
    found = resolved(write(), "--replay.data.corpus.name=text", f"--replay.data.corpus.path={tmp_path}")
    assert found.experiments["replay"].data.corpus.name == "text"
    assert found.experiments["tune"].data.corpus.documents == 400


@pytest.mark.parametrize(
    "words",
    [
        ["--common.model.theta=50000.0"],
        ["--common.position.frequency.method=ntk", "--common.position.frequency.factor=2.5"],
        ["--extend.position.frequency.method=pi", "--extend.position.frequency.factor=2.5"],
    ],
    ids=["theta", "method", "of_one_stage"],
)
def test_other_positions_than_the_base_s_are_kept_in_the_merge(words, write, tmp_path):
    found = resolved(write(), *words)
    assert found.settings["merge"]["positions"] == str(tmp_path / "recipe" / "replayed")
    assert found.experiments["replay"].position == found.experiments["extend"].position
    assert found.experiments["replay"].model == found.experiments["extend"].model


def test_the_length_of_dynamic_ntk_stays_its_own(write):
    method = {"method": "dynamic_ntk", "factor": 2.5, "train_len": 64}
    words = [f"--common.position.frequency.{key}={value}" for key, value in method.items()]
    assert resolved(write(), *words).settings["merge"]["train_len"] is None


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_short_and_resolves(path, request):
    request.getfixturevalue("demo")
    assert len(path.read_text().splitlines()) < 40
    found = resolved(path)
    extend = found.experiments["extend"]
    assert (Path(found.recipe.folder).name, extend.data.window) == (path.stem, round(0.3 * extend.skip.target_len))
    assert found.experiments["replay"].optim.lr < extend.optim.lr
    assert found.settings["merge"]["weights"] == [0.5, 0.5]


SKIPS = {
    "extend": ("longrecipe", True, False),
    "flt": None,
    "pose": ("pose", False, False),
    "rpes": ("rpes", False, False),
    "random": ("longrecipe", False, True),
    "unselected": ("longrecipe", False, False),
}  # method, whether sentences are selected, whether they are drawn


@pytest.mark.parametrize(
    ("name", "length", "sample", "theta"), [("80k", 80_000, 24_000, 4.89e7), ("128k", 128_000, 38_400, 1.315e8)]
)
def test_the_paper_s_recipes(name, length, sample, theta, request):
    """Table 4: 104 steps of 96 samples at 5e-5 for every method, of 240M and 384M tokens but where texts are full."""
    request.getfixturevalue("demo")
    found = resolved(ROOT / "configs" / "recipes" / f"longrecipe_{name}.yaml")
    for stage, skip in SKIPS.items():
        extend = found.experiments[stage]
        window = length if stage == "flt" else sample
        assert (extend.data.window, extend.data.mode, extend.model.theta) == (window, "concatenated", theta)
        assert (extend.train.steps, extend.train.batch_tokens // window) == (104, 96)
        assert [extend.optim.lr_at(step, 104) for step in (0, 50, 103)] == [5e-5] * 3
        assert (extend.optim.beta2, extend.optim.weight_decay) == (0.999, 0.1)
        if skip is not None:
            method, selects, draws = skip
            own = getattr(extend.skip, "selection", None), getattr(extend.skip, "random_sentences", False)
            assert (extend.skip.method, extend.skip.target_len, own[0] is not None, own[1]) == (
                method,
                length,
                selects,
                draws,
            )
        else:
            assert extend.skip is None
        replay, merge = ("replay", "merge") if stage == "extend" else (f"{stage}_replay", f"{stage}_merge")
        after = found.experiments[replay]
        assert (after.start.path, after.skip) == (str(extend.run.path), None)
        assert (after.train.batch_tokens // after.data.window, after.optim.lr, after.train.tokens) == (96, 5e-6, 68e6)
        assert found.settings[merge]["models"] == ["models/llama-3-8b-instruct", str(after.run.path)]
    assert len(found.settings) == 5 + 5 * 3


# what is refused before anything runs

OWN = "is set by the recipe; leave it out"
WRONG = {
    "--replay.optim.lrr=1": ["replay.optim.lrr=1: unknown setting; did you mean optim.lr?"],
    "--tune.data.window=1 --replay.optim.lr=0": [
        "tune.data.window=1: must be >= 2; ",
        "replay.optim.lr=0: must be > 0; ",
    ],
    "--replay.model.d_model=8": ["replay.model.d_model=8: the weights of start.path={folder}/extended have 16; "],
    "--extend.data.window=160": ["extend.skip.target_len=160: must be > data.window=160, "],
    "--common.run.name=x": [f"common.run.name: {OWN}"],
    "--replay.start.path=x --tune.run.folder=y": [f"tune.run.folder: {OWN}", f"replay.start: {OWN}"],
    "--extend.skip.target_len=9": [f"extend.skip: {OWN}"],
    "--extend.skip.method=pose": [f"extend.skip: {OWN}"],
    "--tune.skip.method=longrecipe": [f"tune.skip: {OWN}"],
    "--merge.weights=[0.5,0.6]": ["merge.weights=[0.5, 0.6]: must sum to 1, not 1.1; "],
    "--merge.weights=[1.0]": ["merge.weights"],
    "--analyse.by=pos": ["analyse.by=pos: needs tagger, "],
    "--analyse.topp=1": ["analyse.topp=1: unknown setting; did you mean analyse.top?"],
    "--base=/nowhere": ["base=/nowhere: no such folder; "],
    "--target_len=0": ["target_len=0: must be >= 1; Target window T in tokens"],
    "--methods=[pose,pose]": ["methods=['pose', 'pose']: must name at least one method, each once; "],
    "--methods=[]": ["methods=[]: must name at least one method, each once; "],
    "--methods=[flt] --flt.skip.method=pose": [f"flt.skip: {OWN}"],
    "--methods=[flt] --flt.train.micro_batch_tokens=96": [
        "flt.train.micro_batch_tokens=96: must be >= data.window=160; "
    ],
    "--replayy.train.tokens=9": ['replayy={{"train": {{"tokens": 9}}}}: unknown setting; did you mean replay?'],
    "--common.position.frequency.method=entropy_abf --common.position.frequency.train_len=64": [
        "merge.frequencies=entropy_abf: not supported by a Hugging Face folder; "
    ],
    "--replay.data.corpus.name=text --replay.data.corpus.path=.": [
        "replay.data.corpus.name=text: not prepared in {shards}/text-"
    ],
    "--launcher": ["--launcher: has no value; "],
    "--folder=/dev/null/x": ["folder=/dev/null/x: cannot be written (Not a directory); name another folder"],
}


@pytest.mark.parametrize(("words", "starts"), WRONG.items(), ids=WRONG)
def test_a_mistake_is_found_before_the_first_stage(words, starts, write, prepared, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(longrecipe, "run_stages", lambda *_: pytest.fail("a stage was begun"))
    assert main([str(write()), *words.split()]) == 2
    told = capsys.readouterr()
    named = {"folder": tmp_path / "recipe", "shards": prepared.folder}
    assert told.out == ""
    check_faults(told.err.splitlines(), [start.format(**named) for start in starts])


def test_a_section_that_is_missing_is_named(write, capsys):
    assert main([str(write(replay=None))]) == 2
    assert capsys.readouterr().err.startswith("replay: must be set; ")


def test_too_little_held_out_text_is_found_before_the_first_stage(write, here, capsys):
    path = write()
    prepare(resolved(path).experiments["tune"].data, progress=False)
    assert main([str(path), "--analyse.windows=1000"]) == 2
    assert capsys.readouterr().err.startswith("--windows=1000: the held-out documents in ")
    assert not here[0]


def test_a_tagger_that_is_not_there_is_found_before_the_first_stage(write, capsys):
    pytest.importorskip("spacy")
    assert main([str(write()), "--analyse.by=pos", "--analyse.tagger=en_none"]) == 2
    assert capsys.readouterr().err.startswith("--tagger=en_none: cannot be opened (")


# how stages follow each other


def in_this_process(words):
    """Run a stage's command here, which spares the start of a process."""
    module, rest = words[2], words[3:]
    if module == "lab.fit":
        assert rest[1:] == ["--resume"]
        try:
            return run_experiment(load_experiment(Path(rest[0])), True, "again")
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
    return {"eval.impact": eval.impact.__main__.main, "lab.merge": lab.merge.main}[module](rest)


@pytest.fixture
def here(monkeypatch):
    """Run stages in this process, and list their commands; `statuses` replaces the first of some."""
    begun, statuses = [], {}

    def run_jobs(jobs, on_end):
        for job in jobs:
            begun.append(job.words[2:])
            status = statuses.pop(job.name, None)
            status = in_this_process(job.words) if status is None else status
            on_end(job, status)
            if status:
                return status
        return 0

    monkeypatch.setattr(longrecipe, "run_jobs", run_jobs)
    return begun, statuses


def test_the_whole_recipe(write, base, tmp_path, capsys, here):
    """All stages on a model of some thousand weights; a second call runs nothing, changed settings are refused."""
    path, folder, (begun, _) = write(), tmp_path / "recipe", here
    words = [str(path), "--common.model.theta=50000.0", "--merge.weights=[0.25,0.75]"]
    assert main(words) == 0
    assert [words[0] for words in begun] == ["lab.fit", "eval.impact", "lab.fit", "lab.fit", "lab.merge"]
    assert {place.name for place in folder.iterdir()} == {
        *STAGES.values(),
        *(f"{stage}.yaml" for stage in STAGES),
        "stages.json",
    }
    impact = json.loads((folder / "impact" / "impact.json").read_text())
    assert impact["options"]["length"] == TARGET_LEN
    assert (folder / "extended" / "impact.json").read_bytes() == (folder / "impact" / "impact.json").read_bytes()
    metrics = [json.loads(line) for line in (folder / "extended" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["samples"] >= 40
    assert metrics[-1]["samples_unmatched"] <= metrics[-1]["samples_short"] <= metrics[-1]["samples"]
    counts = np.load(folder / "extended" / "counts.npz")
    assert len(counts["f"]) == TARGET_LEN
    assert counts["f"][48:].any(), "distances beyond a sample"
    assert counts["tokens"] == metrics[-1]["consumed_tokens"]
    original, replayed, merged = (read_weights(place) for place in (base, folder / "replayed", folder / "merged"))
    for name, weight in merged.items():
        expected = 0.25 * original[name].double() + 0.75 * replayed[name].double()
        torch.testing.assert_close(weight.double(), expected, rtol=1e-6, atol=1e-7)
    opened = open_model(folder / "merged")
    assert (opened.train_len, opened.decoder.frequencies.theta) == (TARGET_LEN, 50_000.0)
    extended = read_weights(folder / "extended")
    assert not torch.equal(extended["head.weight"], original["head.weight"])
    assert not torch.equal(extended["head.weight"], replayed["head.weight"])
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert [line.split()[0] for line in table] == ["stage", *STAGES]
    assert table[2].split()[:2] == ["analyse", "1,600"]
    assert table[3].split()[1] == f"{metrics[-1]['consumed_tokens']:,}"

    begun.clear()
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-len(table) :] == table
    assert main([*words, "--tune.optim.lr=0.01", "--analyse.windows=9", "--replay.train.threads=2"]) == 2
    said = "the stage is finished, with {}; set it back, or choose another folder"
    assert capsys.readouterr().err.splitlines() == [
        f"tune.optim.lr=0.01: {said.format(0.001)}",
        f"analyse.windows=9: {said.format(10)}",
    ]
    assert not begun

    shutil.rmtree(folder / "merged")  # is made again from what is there
    assert main(words) == 0
    assert [words[0] for words in begun] == ["lab.merge"]


def test_a_baseline_needs_no_analysis_and_what_is_added_runs_alone(write, tmp_path, here):
    path, (begun, statuses) = write(), here
    stages = ("random", "random_replay", "random_merge")
    statuses.update(dict.fromkeys(stages, 0))
    assert main([str(path), "--methods=[random]"]) == 0
    assert [words[0] for words in begun] == ["lab.fit", "lab.fit", "lab.merge"]
    extended = load_experiment(tmp_path / "recipe" / "random.yaml")
    assert (extended.skip.random_sentences, extended.skip.target_len, extended.run.seed) == (True, TARGET_LEN, 3)
    (tmp_path / "recipe" / "random_merged").mkdir()
    begun.clear()
    statuses.update({"pose": 0, "pose_replay": 75})
    assert main([str(path), "--methods=[pose,random]"]) == 75
    assert [Path(words[1]).name for words in begun] == ["pose.yaml", "pose_replay.yaml"]


def test_an_unfinished_stage_goes_on_and_a_failed_one_ends_the_recipe(write, tmp_path, capsys, here):
    path, (begun, statuses) = write(), here
    (tmp_path / "recipe" / "tuned").mkdir(parents=True)
    statuses.update({"tune": 0, "analyse": 75})
    assert main([str(path)]) == 75
    assert "python -m lab.longrecipe" in capsys.readouterr().err
    statuses["analyse"] = 2
    assert main([str(path)]) == 2, "the stage's own lines say why"
    assert [words[0] for words in begun] == ["lab.fit", "eval.impact", "eval.impact"]
    records = json.loads((tmp_path / "recipe" / "stages.json").read_text())
    assert {stage: record["done"] for stage, record in records.items()} == {"tune": True, "analyse": False}
    statuses["analyse"] = 2
    assert main([str(path), "--extend.optim.lr=0.1", "--analyse.seed=5"]) == 2, "later stages may still be changed"
    assert yaml.safe_load((tmp_path / "recipe" / "extend.yaml").read_text())["optim"]["lr"] == 0.1
    assert "--seed=5" in begun[-1]


FAKE = """
import os, signal, sys, time
from pathlib import Path
place = Path(sys.argv[1])
(place / "words").write_text(" ".join(sys.argv[2:]))
def stop(number, frame):
    (place / "signal").write_text(str(number))
    raise SystemExit(75)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, stop)
wait = place / "wait"
while wait.exists():
    time.sleep(0.02)
raise SystemExit(int((place / "status").read_text()))
"""


@pytest.fixture
def launcher(tmp_path):
    """A command that stands for lab.fit: it ends with the status in a file, or with 75 on a signal."""
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / "status").write_text("0")
    return f"{sys.executable} {tmp_path / 'fake.py'} {tmp_path}"


def test_the_status_of_a_stage_is_passed_on(write, launcher, tmp_path):
    (tmp_path / "status").write_text("1")
    assert main([str(write()), "--launcher", launcher]) == 1
    assert (tmp_path / "words").read_text() == f"-m lab.fit {tmp_path / 'recipe' / 'tune.yaml'} --resume"
    assert json.loads((tmp_path / "recipe" / "stages.json").read_text())["tune"]["done"] is False


@pytest.mark.parametrize("text", ["{", "[]", '{"tune": 1}', '{"tune": {"seconds": "x"}}', "[" * 9999])
def test_damaged_stages_are_one_line(write, capsys, tmp_path, text):
    path = tmp_path / "recipe" / "stages.json"
    path.parent.mkdir()
    path.write_text(text)
    assert main([str(write())]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}: ")
    assert line.endswith("; restore it, or delete it to run the stages again")


def test_a_launcher_that_is_not_there_is_one_line(write, capsys):
    assert main([str(write()), "--launcher", "torchrunn --nproc_per_node 8"]) == 2
    assert capsys.readouterr().err == (
        "--launcher=torchrunn: cannot be started (No such file or directory); name another\n"
    )


def test_a_signal_reaches_the_stage_and_stops_the_recipe(write, launcher, tmp_path):
    (tmp_path / "wait").touch()
    process = Forked([sys.executable, "-m", "lab.longrecipe", str(write()), "--launcher", launcher])
    deadline = time.monotonic() + LIMIT_S
    while not (tmp_path / "words").exists() or not (tmp_path / "words").read_text():
        assert time.monotonic() < deadline, "the stage never began"
        assert process.returncode is None, process.communicate()[1]
        time.sleep(0.02)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate()
    assert process.returncode == 75
    assert (tmp_path / "signal").read_text() == str(int(signal.SIGTERM))
    assert "the recipe was stopped" in errors
    assert "Traceback" not in errors
