import json
import re
from pathlib import Path

import pytest

from tests.forked import python
from tests.refusals import check_faults

CONFIG = "configs/cpu_test.yaml"


def prepare(*words):
    return python("-m", "lab.prepare", *words)


SHARE = "must be I/N with 0 <= I < N; for instance"
MISTAKES = {
    "--workers=1": "CONFIG: must be the first argument, a YAML file; ",
    f"{CONFIG} --workers=0": "--workers=0: must be a whole number >= 1; ",
    f"{CONFIG} --task=4/4": f"--task=4/4: {SHARE}",
    f"{CONFIG} --task=3": f"--task=3: {SHARE}",
    f"{CONFIG} --task=-1/4": f"--task=-1/4: {SHARE}",
    f"{CONFIG} --data.corpus.name=text --data.corpus.path=/nowhere": "data.corpus.path=/nowhere: no such file",
}


@pytest.mark.parametrize(("words", "start"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_status_2_and_one_line(words, start):
    done = prepare(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    check_faults(done.stderr.splitlines(), [start])


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_preparing_says_what_there_is_and_shares_of_a_job_array_complete_to_the_same(tmp_path):
    (tmp_path / "corpus").mkdir()
    for name in "abc":
        rows = [json.dumps({"text": f"document {name} {k} about nothing"}) for k in range(30)]
        (tmp_path / "corpus" / f"{name}.jsonl").write_text("\n".join([*rows, "", "no JSON"]))
    words = (CONFIG, "--data.corpus.name=text", f"--data.corpus.path={tmp_path / 'corpus'}")
    whole, shares = tmp_path / "whole", tmp_path / "shares"
    done = prepare(*words, f"--data.folder={whole}", "--workers=2")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    counted = r"(\d+) documents, ([\d,]+) tokens to train on, ([\d,]+) held out"
    told = re.fullmatch(rf"(\S+): {counted}; skipped: 3 not JSON", line)
    assert told, line
    counts = [json.loads(path.read_text())["splits"] for path in Path(told[1]).glob("task-*/manifest.json")]
    assert len(counts) == 3
    assert sum(c["train"]["documents"] for c in counts) == int(told[2])
    assert sum(c[split]["documents"] for c in counts for split in c) == 90
    assert sum(c["train"]["tokens"] for c in counts) == int(told[3].replace(",", ""))
    before = contents(whole)
    again = prepare(*words, f"--data.folder={whole}")
    assert (again.returncode, again.stdout) == (0, f"{line}\n")
    assert contents(whole) == before
    for share in ("1/2", "0/2"):
        done = prepare(*words, f"--data.folder={shares}", f"--task={share}", "--workers=1")
        assert done.returncode == 0, done.stderr
    assert contents(shares) == before
