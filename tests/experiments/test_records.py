"""Records name commits that exist, so that everybody can run again what was run."""

import json
import lzma
import subprocess
from pathlib import Path

import pytest

from tests.forked import ROOT

LOST = {  # commits that were rebased before they landed, and the commit of main with the same code
    "b4bff0e1": "d2d7ff37, but for two wrapped lines of docstrings",
    "34db8eb2": "fd606fbd, on which these records landed",
}
RECORDS = sorted(Path(ROOT).glob("experiments/*/records/*.jsonl.xz"))


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parts[-3]}-{path.name.partition('.')[0]}")
def test_records_name_a_commit_of_main(path):
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("a shallow clone, or none, has no old commits")
    with lzma.open(path, "rt") as lines:
        records = [json.loads(line) for line in lines]
    texts = [
        json.loads(record["text"]) for record in records if record["file"] in ("environment.json", "provenance.json")
    ]
    commits = {text["commit"] for text in texts if "commit" in text}
    assert commits, "a record without a commit"
    absent = {commit for commit in commits if git("merge-base", "--is-ancestor", commit, "HEAD").returncode}
    assert {commit[:8] for commit in absent} <= LOST.keys()
