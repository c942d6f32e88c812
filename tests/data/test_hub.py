"""SlimPajama in its own layout: in a folder, and on a stand-in of the hub, read by the hub's own client."""

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow
import pytest

from lab.core.launch import in_processes
from lab.core.schema import validated
from lab.data.config import Slimpajama
from lab.data.preparation import prepare, shard_folder
from tests.data.slim import slim
from tests.data.stores import folder_bytes, read_shard
from tests.forked import ROOT
from tests.refusals import check_faults, refused

ROWS, COMMIT = 10, "c" * 40
READS = (2, 2, 1, 1)  # of the files in turn: at first one that is cut off
CARD = """---
configs:
- config_name: tables
  data_files: [{split: all, path: tables/*.csv}]
  sep: "|"
---
"""
TABLE = "body|kind\nw7 w1|x\nw8|y\n"
NAMES = [f"{split}/chunk{k}/example_{split}_0.jsonl.zst" for split in ("train", "validation", "test") for k in (1, 2)]


def contents(name):
    """Write rows of the form of SlimPajama's files: w and a number for each word, the first ones those of the file."""
    rows = [{"text": f"w{NAMES.index(name)} w{n}", "meta": {"redpajama_set_name": f"Set{n % 2}"}} for n in range(ROWS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return pyarrow.compress(lines.encode(), codec="zstd", asbytes=True)


def first_words(folder):
    """Read the first token of every document, and the sources."""
    tasks = product(sorted(folder.glob("task-*")), ("train", "held_out"))
    read = [document for path, split in tasks for document in read_shard(path, split)]
    return Counter(ids[0] - 1 for ids, _ in read), {source for _, source in read}


@pytest.fixture
def config(tmp_path, tokenizer):
    """The config of a folder in SlimPajama's own layout."""
    for name in NAMES:
        file = tmp_path / "corpus" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(contents(name))
    return slim(tmp_path, tokenizer, upsample=None, held_out_frac=0.0)


def test_a_folder_gives_its_training_split_and_says_so(config, capsys):
    prepare(config, progress=False)
    assert first_words(shard_folder(config)) == ({0: ROWS, 1: ROWS}, {"Set0", "Set1"})
    assert "data: files read: 2; skipped: 4 of other splits" in capsys.readouterr().out


def test_a_worker_that_is_killed_is_one_line():
    with refused("--workers=2: a worker was killed{}"):
        in_processes(os._exit, [9, 9], 2, int)


def test_a_repository_beside_a_folder_is_refused():
    with refused("repository=a/b: would be ignored"):
        validated(Slimpajama, {"path": "x", "repository": "a/b"})


@pytest.fixture
def hub():
    """A server that answers as the hub documents: a commit, a tree, parts of files; these at first by 429.

    The first answer with a file's contents is cut off in its middle. A question of an unknown form gets 404.
    """
    asked, seen = Counter(), set()
    slimpajama = {name: contents(name) for name in NAMES}
    repositories = {"name": slimpajama, "tables": {"README.md": CARD.encode(), "tables/a.csv": TABLE.encode()}}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: PLR0911
            url = urlsplit(self.path)
            found = re.fullmatch(r"(?:/api)?/datasets/owner/(\w+)(?:/(\w+)/(\w+)/?(.*))?", unquote(url.path))
            if found is None:
                return self.answer(404, b"")
            repository, what, _, name = found.groups()
            if repository not in repositories:
                return self.answer(401, b"", **{"X-Error-Code": "RepoNotFound"})
            if what not in (None, "revision", "tree") and (self.command, url) not in seen:
                seen.add((self.command, url))
                return self.answer(429, b"", **{"Retry-After": "0"})
            files = repositories[repository]
            if what in (None, "revision"):
                return self.answer(200, json.dumps({"id": f"owner/{repository}", "sha": COMMIT}).encode())
            if what == "tree":
                return self.answer_tree(files, name, is_deep="recursive=true" in url.query)
            if name not in files:
                return self.answer(404, b"", **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            asked[name, self.command] += 1
            headers = {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            start, end = map(int, re.findall(r"\d+", self.headers.get("Range", "bytes=0-99999999")))
            return self.answer(200, files[name][start : end + 1], cut=asked[name, "GET"] == 1, **headers)

        do_HEAD = do_GET

        def answer_tree(self, files, below, is_deep):
            asked["tree", is_deep] += 1
            tree = [{"type": "file", "path": name, "oid": "o", "size": len(data)} for name, data in files.items()]
            above = {str(parent) for name in files for parent in Path(name).parents} - {"."}
            tree += [{"type": "directory", "path": name, "oid": "o"} for name in sorted(above)]
            tree = [entry for entry in tree if entry["path"].startswith(below and f"{below}/")]
            if not is_deep:
                tree = [entry for entry in tree if str(Path(entry["path"]).parent) == (below or ".")]
            if not tree:
                return self.answer(404, b"", **{"X-Error-Code": "EntryNotFound"})
            return self.answer(200, json.dumps(tree).encode())

        def answer(self, status, body, *, cut=False, **headers):
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[: len(body) // 2] if cut else body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def prepare_from_hub(place, url, *words, corpus="name: slimpajama, repository: owner/name", shards="shards"):
    """Prepare in an interpreter of its own, as the client reads the hub's address when it is imported."""
    tokenizer = f"--data.tokenizer={{method: file, path: {place / 'tokenizer.json'}, eos: <eos>}}"
    command = [sys.executable, "-m", "lab.prepare", "configs/cpu_test.yaml", f"--data.corpus={{{corpus}}}", tokenizer]
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(place / "home"), "HF_HUB_DISABLE_XET": "1"}
    words = [f"--data.folder={place / shards}", "--model.vocab_size=501", *words]
    return subprocess.run([*command, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path, tokenizer):
    """A folder with a tokenizer."""
    (tmp_path / "tokenizer.json").write_bytes(Path(tokenizer.path).read_bytes())
    return tmp_path


@pytest.mark.slow
def test_the_hub_is_listed_once_and_a_task_streams_its_own_files_whatever_is_cut_off(place, hub):
    url, asked = hub
    calls = [(1, 1, "a", "--task=0/2"), (1, 2, "a", "--task=1/2"), (2, 4, "b", "--workers=2")]
    for listings, read, shards, words in calls:
        done = prepare_from_hub(place, url, words, shards=shards)
        assert done.returncode == 0, done.stderr
        assert asked["tree", True] == listings
        assert sum(asked[name, "GET"] for name in NAMES[:2]) == sum(READS[:read])
        assert ("data: files read: 2; skipped: 4 of other splits\n" in done.stdout) == (words != "--task=1/2")
    [[one], [other]] = ([*(place / shards).iterdir()] for shards in "ab")
    assert folder_bytes(one) == folder_bytes(other)
    assert first_words(one) == ({0: ROWS, 1: ROWS}, {"Set0", "Set1"})
    assert all(COMMIT in name for name in json.loads((one / "inputs.json").read_text()))


def test_a_configuration_by_its_card(place, hub):
    url, _ = hub
    corpus = "name: dataset, repository: owner/tables, config: tables, split: all, text: body, source: kind"
    for _ in range(2):
        done = prepare_from_hub(place, url, corpus=corpus)
        assert done.returncode == 0, done.stderr
    [folder] = (place / "shards").iterdir()
    assert first_words(folder) == ({7: 1, 8: 1}, {"x", "y"})


@pytest.mark.parametrize(
    ("corpus", "rule"),
    [
        ("repository: owner/gone", "data.corpus.repository=owner/gone: cannot be listed{}"),
        ("repository: owner/tables, config: all", "data.corpus.repository=owner/tables: cannot be listed{}tables{}"),
        ("repository: owner/tables, config: tables", "data.corpus.split=train: {}use one of: all"),
        pytest.param(
            "repository: owner/tables, split: all",
            "data.corpus.text=text: {}use one of: body, kind",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_a_repository_lacks_is_one_line_that_names_the_setting(place, hub, corpus, rule):
    done = prepare_from_hub(place, hub[0], corpus=f"name: dataset, {corpus}")
    assert done.returncode == 2
    check_faults(done.stderr.splitlines()[-1:], [rule])
