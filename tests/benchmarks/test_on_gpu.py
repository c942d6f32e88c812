"""The command for the day a GPU is there, at toy size on a CPU."""

import functools
import os
import platform
import re
import subprocess
import sys
from importlib import metadata

import pytest
import torch

from benchmarks import installed, on_gpu, record
from benchmarks.gpu import products, training
from tests.forked import ROOT, python

BARE = """
import sys
from importlib.machinery import PathFinder
ABSENT = "datasets filelock huggingface_hub lightning pandas safetensors scipy tokenizers tqdm transformers".split()
class Present:
    def find_distributions(context):
        return [] if context.name in ABSENT else PathFinder.find_distributions(context)
    def find_spec(name, path=None, target=None):
        return None if name in ABSENT else PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [Present if finder is PathFinder else finder for finder in sys.meta_path]
import pytest
raise SystemExit(pytest.main(["-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""


def test_the_gpu_tests_are_collected_where_packages_for_data_are_missing():
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "tests/model/test_contract.py" in done.stdout


def test_missing_packages_are_one_line_with_what_installs_them(monkeypatch, capsys):
    own = metadata.version

    def version(name):
        if name in ("pydantic", "tqdm"):
            raise metadata.PackageNotFoundError(name)
        return own(name)

    installed.require("on_gpu")
    monkeypatch.setattr(installed.metadata, "version", version)
    # A machine with Python 3.10 and glibc 2.18, which another machine downloads wheels for.
    monkeypatch.setattr(platform, "python_version", lambda: "3.10.2")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.18"))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(SystemExit) as ended:
        installed.require("on_gpu")
    line = capsys.readouterr().err
    assert (ended.value.code, line.count("\n"), line.count("'pydantic>=2.12,<3' 'tqdm>=4.66'")) == (2, 1, 2)
    assert f"{sys.executable} -m pip install --no-index --find-links=" in line
    tags = (f"--platform=manylinux{tag}_aarch64" for tag in ("_2_18", "_2_17", "2014"))
    assert f" --python-version=3.10.2 {' '.join(tags)} --dest=" in line


def test_a_case_that_raises_does_not_stop_the_next(tmp_path, monkeypatch, capsys):
    def lacks():
        raise record.Skipped("no such package")

    made = {"before": lambda: {"x": 1}, "broken": lambda: 1 / 0, "absent": lacks, "after": lambda: {"x": 2}}
    monkeypatch.setattr(on_gpu, "cases", lambda options: made)
    monkeypatch.setattr("sys.argv", ["on_gpu", "--out", str(tmp_path / "new"), "--toy"])
    assert on_gpu.main() == 1
    found = record.read(tmp_path / "new" / "results.jsonl")
    assert [(r.case, r.status) for r in found] == [*zip(made, ("ok", "failed", "skipped", "ok"), strict=True)]
    assert [r.reason for r in found] == [None, "ZeroDivisionError: division by zero", "no such package", None]
    assert capsys.readouterr().out.count("\n") == 4


def test_the_command_measures_every_case_at_toy_size(tmp_path):
    done = python(
        "-m", "benchmarks.on_gpu", "--toy", "--out", str(tmp_path), env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = {one.case: one for one in record.read(tmp_path / "results.jsonl")}
    assert {name: one.status for name, one in cases.items()} == dict.fromkeys(("compile", "tiny_2k", "tiny_4k"), "ok")
    for name in ("tiny_2k", "tiny_4k"):
        figures = cases[name].figures
        assert figures["last_loss"] < figures["first_loss"]
        assert min(figures["tokens_per_s"], figures["dry_run_gib"]) > 0


def test_micro_batches_and_updates_are_timed_apart_by_hand():
    # 3 packs an update; micro-batches between two others take 2 s; an update lasts 9 s, 9 s, 12 s, of them 3 * 2 s
    times = [0, 4, 6, 9, 13, 15, 18, 25, 27, 30]
    assert training.apart(times, 3) == (2, 3)


def test_every_product_is_tuned_for_its_own_shape(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch._dynamo.utils.counters.clear()
    for n in range(2, 12):  # torch compiles a function for 8 shapes at most
        products.tune((torch.ones(n, 3), torch.ones(3, n + 1)))()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 10


def test_the_limits_of_each_first_call_are_300_s_at_most():
    script = (ROOT / "benchmarks/first_gpu.sh").read_text()
    grace = int(re.search(r"--kill-after=(\d+)", script)[1])
    limits = [int(limit) + grace for limit in re.search(r"^limits=\((.*)\)", script, re.MULTILINE)[1].split()]
    assert max(sum(limits[:3]), sum(limits[3:])) <= 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "parts"), [("1", ["products", "updates", "tests"]), ("2", ["stop", "resume", "verify", "profile"])]
)
def test_each_call_of_the_first_script_runs_its_parts_at_toy_size(tmp_path, call, parts):
    env = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = ["bash", "benchmarks/first_gpu.sh", call, str(tmp_path), "--toy"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    texts = "".join(path.read_text()[-2000:] for path in tmp_path.glob("*.txt"))
    assert done.returncode == 0, texts
    assert [line.split()[0] for line in (tmp_path / "status.txt").read_text().splitlines()] == parts
    if call == "1":
        assert len(record.read(tmp_path / "products.jsonl")) == 8 * 3
    else:
        assert "stopped after" in (tmp_path / "stop.txt").read_text()
        assert [*(tmp_path / "profile").glob("*.json")]
