"""What messages and pages say to install exists, and installs what is needed."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()}
SOURCES = sorted(path for part in ("lab", "eval", "experiments", "benchmarks") for path in (ROOT / part).rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TRAINING = (ROOT / "docs" / "training.md").read_text()
LOCKED = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.M)
}
INSTALL = re.compile(r"pip install[^`\n]*")


def names(extra):
    """List the packages of an extra, those of extras it refers to included."""
    found = set()
    for requirement in EXTRAS[extra]:
        if requirement.name == PROJECT["name"]:
            found |= set().union(*(names(other) for other in requirement.extras))
        else:
            found.add(canonicalize_name(requirement.name))
    return found


def asked_for(line):
    """List the extras that an installation line names."""
    return [extra for group in re.findall(r"\.\[([^\]]+)\]", line) for extra in group.split(",") if "{" not in extra]


def needed_by(*extras):
    """List the requirements of the package and some extras, with those of installed packages in turn."""
    wanted = [Requirement(line) for line in PROJECT["dependencies"]] + [r for extra in extras for r in EXTRAS[extra]]
    packages = set()
    for need in wanted:
        known = (canonicalize_name(need.name), *sorted(need.extras))
        if known not in packages and not (need.marker and not need.marker.evaluate({"extra": ""})):
            packages.add(known)
            try:
                further = map(Requirement, metadata.requires(need.name) or ())
            except metadata.PackageNotFoundError:
                continue  # not installed here: what needs it is blocked
            chosen = ("", *need.extras)
            taken = [r for r in further if not r.marker or any(r.marker.evaluate({"extra": e}) for e in chosen)]
            wanted += [Requirement(str(r).partition(";")[0]) for r in taken]
    return wanted


def brought_by(extra):
    """List the modules that the package and one extra install."""
    found = {canonicalize_name(need.name) for need in needed_by(*filter(None, [extra]))}
    return {top for top, by in metadata.packages_distributions().items() if found & set(map(canonicalize_name, by))}


ALONE = """
import sys
from importlib.machinery import PathFinder
class Only(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        known = path is not None or name.startswith("_") or name in {allowed!r}
        return PathFinder.find_spec(name, path, target) if known else None
sys.meta_path[:] = [Only if finder is PathFinder else finder for finder in sys.meta_path]
{code}
"""
PREPARE = "from lab.prepare import main\nassert main(['configs/cpu_test.yaml', *{words!r}]) == 0"
PLOT = """
import altair
chart = altair.Chart(altair.Data(values=[{{'x': 1}}])).mark_bar()
chart.encode(x='x:Q').save('{path}/x.png')
"""
USES = {  # what commands do with an extra
    "": "from lab.fit import read_arguments\nassert read_arguments(['configs/cpu_test.yaml', '--print_config']) == 0",
    "data": PREPARE,
    "plot": PLOT,
    "wandb": "import wandb\nwandb.init(mode='offline', dir='{path}').finish()",
    "hf": "from transformers.models.llama.modeling_llama import LlamaForCausalLM",
}


@pytest.mark.parametrize("extra", USES)
def test_an_extra_alone_brings_what_its_use_imports(tmp_path, extra):
    rows = [{"text": f"text {n} of some words", "meta": {"redpajama_set_name": "Web"}} for n in range(50)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    pyarrow = pytest.importorskip("pyarrow")
    (tmp_path / "part.jsonl.zst").write_bytes(pyarrow.compress(lines, codec="zstd", asbytes=True))
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), tmp_path / "part.parquet")
    words = ["--workers=1", "--data.corpus.name=slimpajama", f"--data.corpus.path={tmp_path}"]
    words.append(f"--data.folder={tmp_path / 'shards'}")
    allowed = brought_by(extra) | sys.stdlib_module_names | {"lab", "eval"}
    code = ALONE.format(allowed=allowed, code=USES[extra].format(words=words, path=tmp_path))
    environment = {**os.environ, "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def missing_packages():
    """List the (package, extra) of every MissingPackage in the code whose arguments are written out."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MissingPackage":
                package, _, extra = node.args
                yield path.name, getattr(package, "value", None), ast.literal_eval(extra)


def test_every_missing_package_is_in_the_extra_that_its_message_names():
    found = list(missing_packages())
    assert len(found) > 5
    for file, package, extra in found:
        assert extra in EXTRAS, (file, extra)
        if isinstance(package, str):
            assert canonicalize_name(package) in names(extra), (file, package, extra)
    assert "xformers" in names("gpu")  # what lab.model.backends names, beside flash-attn
    # which pip cannot build in isolation
    assert "flash-attn" not in set().union(*map(names, EXTRAS))


@pytest.mark.parametrize("path", [*PAGES, *SOURCES, ROOT / "Makefile"], ids=lambda path: path.name)
def test_every_installation_line_names_extras_that_exist(path):
    text = path.read_text()
    assert "probe-lab[" not in text, "the package is on no index"
    for line in INSTALL.findall(text):
        assert set(asked_for(line)) <= EXTRAS.keys(), line
        assert not re.search(r"flash-attn\b(?!-)", line) or "--no-build-isolation" in line, line


def test_the_lock_holds_what_the_training_page_installs_at_the_versions_of_the_tests():
    lock = (ROOT / "requirements.lock").read_text()
    (hashed,) = re.findall(r"`(pip install --require-hashes[^`]*)`", TRAINING)
    assert hashed.endswith(" requirements.lock")
    extras = [extra for line in INSTALL.findall(TRAINING) for extra in asked_for(line)]
    for need in needed_by(*extras):
        if not need.marker or need.marker.evaluate({"extra": ""}):
            assert need.specifier.contains(LOCKED[canonicalize_name(need.name)], prereleases=True), str(need)
    constraints = re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    tested = {canonicalize_name(name): version for name, version in constraints}
    assert {name: version for name, version in LOCKED.items() if tested.get(name, version) != version} == {}
    entries = re.split(r"\n(?=[a-z])", lock)[1:]
    assert len(entries) == len(LOCKED)
    assert all(re.search(r"\n --hash=sha256:[0-9a-f]{64}$", entry.rstrip()) for entry in entries)
