"""Reach over a series of models: revisions of the hub from a stand-in of its cache, and folders of checkpoints."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from eval import distance as command
from eval.engine.over_models import TOGETHER, chart
from eval.engine.rows import columns_text
from eval.engine.subject import Subject
from lab.source import hub_folder
from tests.eval.commands import rows_in, words_of

WORDS = ("--tests=1", "--points=2", "--digits=2")
STEPS = (3, 20, 100)


@pytest.fixture(scope="module")
def checkpoints(hugging_face_folder, tmp_path_factory):
    """A folder of three checkpoints of one transformers model, whose weights differ."""
    home = tmp_path_factory.mktemp("series")
    for step in STEPS:
        folder = shutil.copytree(hugging_face_folder, home / f"step_{step}")
        weights = {name: tensor * (1 + step / 100) for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return home


@pytest.fixture
def hub(checkpoints, tmp_path, monkeypatch):
    """The hub's cache as its documentation describes it: blobs, snapshots that link to them, refs; no network."""
    constants = pytest.importorskip("huggingface_hub").constants
    home = tmp_path / "hub" / "models--owner--small"
    (home / "refs").mkdir(parents=True)
    (home / "blobs").mkdir()
    for step in STEPS:
        commit = f"{step:0<40}"
        (home / "refs" / f"step{step}").write_text(commit)
        snapshot = home / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for path in (checkpoints / f"step_{step}").iterdir():
            shutil.copy(path, home / "blobs" / f"{step}-{path.name}")
            (snapshot / path.name).symlink_to(f"../../blobs/{step}-{path.name}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub_folder.cache_clear()
    yield home
    hub_folder.cache_clear()


def test_one_command_draws_reach_over_the_revisions_of_a_model(hub, text_file, tmp_path, capsys, monkeypatch):
    words = [*WORDS, f"--haystack={text_file}", "-o", str(tmp_path / "out")]
    assert command.main(["hf:owner/small@step*", *words]) == 0
    names = [f"small@step{step}" for step in STEPS]
    printed = words_of(capsys.readouterr().out)
    assert [line[:2] for line in printed if line[0] in names] == [[name, "-"] for name in names]
    (together,) = (tmp_path / "out").glob("reach-*.jsonl")
    own = {row["model"]: row for name in names for row in rows_in(next((tmp_path / "out" / name).glob("distance-*l")))}
    rows = rows_in(together)
    assert [row["model"] for row in rows] == names
    assert [row["weights"] for row in rows] == [f"{step:0<40}"[:16] for step in STEPS]
    assert all(row["reach_high"] == own[row["model"]]["reach_high"] for row in rows)
    # nothing is measured again
    with monkeypatch.context() as patch:
        patch.setattr(Subject, "generate", None)
        assert command.main([*(f"hf:owner/small@step{step}" for step in STEPS), *words, "--json"]) == 0
    assert rows_in(together) == rows
    found = json.loads(capsys.readouterr().out)
    assert {row["model"] for row in found["rows"]} == {*names}


def test_a_folder_of_checkpoints_is_measured_in_the_order_of_its_steps(checkpoints, text_file, tmp_path, capsys):
    words = [*WORDS, f"--haystack={text_file}", "-o", str(tmp_path / "out")]
    assert command.main([str(checkpoints / "step_*"), *words, "--distance=plain,rerope:window=9"]) == 0
    printed = words_of(capsys.readouterr().out)
    names = [f"step_{step}" for step in STEPS]
    assert [(line[0], line[2]) for line in printed if line[0] in names] == [
        (name, method) for name in names for method in ("rope+plain", "rope+rerope(window=9)")
    ]


def test_the_table_and_the_picture_by_hand():
    row = {"method": "m", "reach": 1234.5, "reach_low": None, "reach_high": None, "threshold": 0.8, "f_at_reach": None}
    row |= {"first_distance": 64, "last_distance": 2000}
    rows = [{**row, "model": "a", "consumed_tokens": 9000}, {**row, "model": "b", "consumed_tokens": 7, "reach": None}]
    assert words_of(columns_text(rows, TOGETHER)) == [
        ["model", "tokens", "method", "reach", "limits", "f"],
        ["a", "9,000", "m", "1,234.5", "<64", "to", "the", "end", "-"],
        ["b", "7", "m", "<64", "<64", "to", "the", "end", "-"],
    ]
    pytest.importorskip("altair")
    (drawn,) = [rows for rows in chart(rows).to_dict()["datasets"].values() if len(rows) == 2]
    assert [(row["consumed_tokens"], row["shown"], row["from"], row["to"]) for row in drawn] == [
        (9000, 1234.5, 0, 2000),
        (7, 64, 0, 2000),
    ]
