"""SlimPajama in its own layout: in a folder, and on a stand-in of the hub, read by the hub's own client."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyarrow
import pytest

from lab.data import preparation
from lab.data.config import Slimpajama
from lab.data.preparation import prepare, shard_folder
from lab.errors import DiskError
from lab.launch import in_processes
from lab.schema import validated
from tests.data.slim import slim
from tests.data.stores import read_shard
from tests.forked import ROOT
from tests.refusals import check_faults, refused

ROWS, PAGE, COMMIT = 10, 2, "c" * 40
NAMES = [f"{split}/chunk{k}/example_{split}_0.jsonl.zst" for split in ("train", "validation", "test") for k in (1, 2)]


def contents(name):
    """Write rows of the form of SlimPajama's files: w and a number for each word, the first ones those of the file."""
    rows = [{"text": f"w{NAMES.index(name)} w{n}", "meta": {"redpajama_set_name": f"Set{n % 2}"}} for n in range(ROWS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return pyarrow.compress(lines.encode(), codec="zstd", asbytes=True)


@pytest.fixture
def config(tmp_path, tokenizer):
    """The config of a folder in SlimPajama's own layout."""
    for name in NAMES:
        file = tmp_path / "corpus" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(contents(name))
    return slim(tmp_path, tokenizer, upsample=None, held_out_frac=0.0)


def first_words(folder):
    """Read the first token of every document, and the sources."""
    read = [document for path in sorted(folder.glob("task-*")) for document in read_shard(path, "train")]
    return Counter(ids[0] - 1 for ids, _ in read), {source for _, source in read}


def test_a_folder_gives_its_training_split_and_says_so(config, capsys):
    prepare(config, progress=False)
    assert first_words(shard_folder(config)) == ({0: ROWS, 1: ROWS}, {"Set0", "Set1"})
    assert "data: 2 files; 4 of validation and test are left out" in capsys.readouterr().out


def test_a_disk_that_is_too_small_is_refused_before_the_first_task(config, monkeypatch):
    monkeypatch.setattr(preparation.files, "free_bytes", lambda path: 2 * 70)
    monkeypatch.setitem(preparation.PACKED, True, 70 / sum(len(contents(name)) for name in NAMES[:2]))
    prepare(config, tasks=slice(1), progress=False)  # 70 tokens of 2 bytes fit
    monkeypatch.setattr(preparation.files, "free_bytes", lambda path: 2 * 35 - 1)  # half of them are left
    with refused(f"{shard_folder(config)}: the shards need about 0.0 GB more, and 0.0 GB are free", error=DiskError):
        prepare(config, progress=False)
    assert [path.name for path in shard_folder(config).glob("task-*")] == ["task-00000"]


def test_a_worker_that_is_killed_is_one_line():
    with refused("--workers=2: a worker was killed{}"):
        in_processes(os._exit, [9, 9], 2, int)


def test_a_repository_beside_a_folder_is_refused():
    with refused("repository=a/b: would be ignored beside path"):
        validated(Slimpajama, {"path": "x", "repository": "a/b"})


@pytest.fixture
def hub():
    """A server that answers as the hub documents: a commit, pages of a tree, files; the latter at first by 429."""
    asked, limited = Counter(), set()

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            url = urlsplit(self.path)
            what, _, name = url.path.partition(f"/{COMMIT}")
            kind = "file" if "/resolve" in what else "tree" if "/tree" in what else "commit"
            if "owner/" not in what:
                return self.answer(404, b"")  # of what the client asks beside
            if (self.command, url.path) not in limited and kind != "commit":
                limited.add((self.command, url.path))
                return self.answer(429, b"", **{"Retry-After": "0"})
            asked[kind, self.command] += 1
            if "owner/name" not in what:
                return self.answer(401, b"", **{"X-Error-Code": "RepoNotFound"})
            if kind == "commit":
                return self.answer(200, json.dumps({"id": "owner/name", "sha": COMMIT}).encode())
            if kind == "file":
                data = contents(name[1:])
                headers = {"ETag": f'"{NAMES.index(name[1:])}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
                return self.answer(200, data, **headers)
            start = int(parse_qs(url.query).get("cursor", ["0"])[0])
            files = [{"type": "file", "path": name, "oid": "o", "size": len(contents(name))} for name in NAMES]
            files.append({"type": "file", "path": "README.md", "oid": "o", "size": 9})
            link = f'<http://{self.headers["Host"]}{url.path}?recursive=true&cursor={start + PAGE}>; rel="next"'
            more = {"Link": link} if start + PAGE < len(files) else {}
            return self.answer(200, json.dumps(files[start : start + PAGE]).encode(), **more)

        do_HEAD = do_GET

        def answer(self, status, body, **headers):
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def prepare_from_hub(place, url, *words, repository="owner/name"):
    """Prepare in an interpreter of its own, as the client reads the hub's address when it is imported."""
    corpus = f"--data.corpus={{name: slimpajama, repository: {repository}}}"
    tokenizer = f"--data.tokenizer={{method: file, path: {place / 'tokenizer.json'}, eos: <eos>}}"
    command = [sys.executable, "-m", "lab.prepare", "configs/cpu_test.yaml", corpus, tokenizer]
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(place / "home"), "HF_HUB_DISABLE_XET": "1"}
    words = [f"--data.folder={place / 'shards'}", "--model.vocab_size=501", *words]
    return subprocess.run([*command, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path, tokenizer):
    """A folder with a tokenizer."""
    (tmp_path / "tokenizer.json").write_bytes(Path(tokenizer.path).read_bytes())
    return tmp_path


def test_the_hub_is_listed_once_and_a_task_downloads_its_own_files(place, hub):
    url, asked = hub
    for task in ("0/2", "1/2", "0/1"):
        done = prepare_from_hub(place, url, f"--task={task}")
        assert done.returncode == 0, done.stderr
        assert asked["file", "GET"] == 1 + (task != "0/2")
    assert (asked["commit", "GET"], asked["tree", "GET"]) == (1, len(NAMES) // PAGE + 1)
    [folder] = (place / "shards").iterdir()
    words, sources = first_words(folder)
    assert (words.keys(), sources) == ({0, 1}, {"Set0", "Set1"})
    assert all(COMMIT in name for name in json.loads((folder / "inputs.json").read_text()))


def test_a_repository_that_is_gone_is_one_line_that_names_the_setting(place, hub):
    done = prepare_from_hub(place, hub[0], repository="owner/gone")
    assert done.returncode == 2
    check_faults(done.stderr.splitlines(), ["data.corpus.repository=owner/gone: cannot be listed on the hub{}"])
