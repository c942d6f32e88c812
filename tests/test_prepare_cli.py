import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "configs/cpu_test.yaml"


def prepare(*words):
    return subprocess.run(
        [sys.executable, "-m", "lab.prepare", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def expect_mistake(done, start):
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(start)


@pytest.fixture
def text_words(tmp_path):
    """Arguments for a text corpus of three files with 30 documents each."""
    (tmp_path / "corpus").mkdir()
    for name in "abc":
        rows = [json.dumps({"text": f"document {name} {k} about nothing"}) for k in range(30)]
        (tmp_path / "corpus" / f"{name}.jsonl").write_text("\n".join([*rows, "", "no JSON"]))
    return (
        CONFIG,
        "--data.corpus.name=text",
        f"--data.corpus.path={tmp_path / 'corpus'}",
        f"--data.folder={tmp_path / 'shards'}",
    )


def shards(tmp_path):
    return {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in sorted((tmp_path / "shards").rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("words", "start"),
    [
        pytest.param(["--verify"], "CONFIG: must be the first argument, a YAML file; ", id="flag_only"),
        pytest.param(["nowhere.yaml"], "nowhere.yaml: no such file; ", id="missing_file"),
        pytest.param(
            [CONFIG, "--data.windw=3"], "data.windw=3: unknown setting; did you mean data.window?", id="unknown"
        ),
        pytest.param([CONFIG, "--workers=0"], "--workers=0: must be a whole number >= 1; ", id="no_worker"),
        pytest.param([CONFIG, "--workers", "many"], "--workers=many: must be a whole number >= 1; ", id="word_worker"),
        pytest.param([CONFIG, "--workers"], "--workers: has no value; write --workers=value", id="workers_alone"),
        pytest.param(
            [CONFIG, "--task=4/4"], "--task=4/4: must be I/N with 0 <= I < N; for instance 0/64", id="share_4_4"
        ),
        pytest.param([CONFIG, "--task=3"], "--task=3: must be I/N with 0 <= I < N; ", id="share_3"),
        pytest.param([CONFIG, "--task=-1/4"], "--task=-1/4: must be I/N with 0 <= I < N; ", id="share_negative"),
        pytest.param([CONFIG, "--task=a/b"], "--task=a/b: must be I/N with 0 <= I < N; ", id="share_words"),
        pytest.param(
            [CONFIG, "--data.corpus.name=text", "--data.corpus.path=/nowhere"],
            "data.corpus.path=/nowhere: no such file or folder; give one with .jsonl",
            id="missing_corpus",
        ),
    ],
)
def test_a_mistake_is_status_2_and_one_line(words, start):
    expect_mistake(prepare(*words), start)


def test_preparing_says_what_there_is_and_what_was_left_out(text_words, tmp_path):
    done = prepare(*text_words, "--workers=1")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    told = re.fullmatch(
        r"(\S+): (\d+) documents, ([\d,]+) tokens to train on, ([\d,]+) held out; left out: 3 not JSON", line
    )
    assert told, line
    counts = [json.loads(path.read_text())["splits"] for path in Path(told[1]).glob("task-*/manifest.json")]
    assert len(counts) == 3
    assert sum(c["train"]["documents"] for c in counts) == int(told[2])
    assert sum(c[split]["documents"] for c in counts for split in c) == 90
    assert sum(c["train"]["tokens"] for c in counts) == int(told[3].replace(",", ""))
    before = shards(tmp_path)
    again = prepare(*text_words, "--verify")
    assert (again.returncode, again.stdout) == (0, f"{line}; all hashes match\n")
    assert shards(tmp_path) == before


def test_shares_of_a_job_array_complete_to_the_same(text_words, tmp_path):
    for share in ("1/2", "0/2"):
        done = prepare(*text_words, f"--task={share}")
        assert done.returncode == 0, done.stderr
    by_shares = shards(tmp_path)
    whole = [word.replace(str(tmp_path / "shards"), str(tmp_path / "other" / "shards")) for word in text_words]
    assert prepare(*whole, "--workers=2").returncode == 0
    assert shards(tmp_path / "other") == by_shares


def test_verify_names_a_flipped_byte(text_words, tmp_path):
    assert prepare(*text_words).returncode == 0
    (path,) = (tmp_path / "shards").glob("*/task-00001/train.tokens.bin")
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    expect_mistake_last_line(prepare(*text_words, "--verify"), f"{path}: SHA-256 differs from its manifest; delete ")


def expect_mistake_last_line(done, start):
    """Like expect_mistake, after a progress bar."""
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(start)
    assert "Traceback" not in done.stderr


def test_an_empty_corpus_is_status_2_and_leaves_nothing(text_words, tmp_path):
    for path in (tmp_path / "corpus").iterdir():
        path.write_text("no JSON\n")
    expect_mistake_last_line(prepare(*text_words), "data.corpus: empty, ")
    assert shards(tmp_path) == {}


def test_a_folder_that_cannot_be_made_is_status_2(text_words, tmp_path):
    (tmp_path / "shards").write_text("a file where the folder should be")
    expect_mistake_last_line(prepare(*text_words), "data.folder=")
