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
INSTALL = re.compile(r"pip install[^`\n]*")


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


def packages_of(*extras):
    return {canonicalize_name(need.name) for need in needed_by(*extras)}


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
CHART = "altair.Chart(altair.Data(values=[{{'x': 1}}])).mark_bar().encode(x='x:Q')"
USES = {  # what commands do with an extra
    "": "from lab.fit import read_arguments\nassert read_arguments(['configs/cpu_test.yaml', '--print_config']) == 0",
    "data": "from lab.prepare import main\nassert main(['configs/cpu_test.yaml', *{words!r}]) == 0",
    "plot": f"import altair\n{CHART}.save('{{path}}/x.png')",
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
    corpus = ["--data.corpus.name=slimpajama", f"--data.corpus.path={tmp_path}"]
    words = ["--workers=1", *corpus, f"--data.folder={tmp_path / 'shards'}"]
    brought = packages_of(*filter(None, [extra]))
    modules = {top for top, by in metadata.packages_distributions().items() if brought & {*map(canonicalize_name, by)}}
    allowed = modules | sys.stdlib_module_names | {"lab", "eval"}
    code = ALONE.format(allowed=allowed, code=USES[extra].format(words=words, path=tmp_path))
    environment = {**os.environ, "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_missing_package_is_in_the_extra_that_its_message_names():
    nodes = [node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    raised = [node.args for node in nodes if getattr(node.func, "id", "") == "MissingPackage"]
    assert len(raised) > 5
    for package, _, extra in raised:
        brought = packages_of(ast.literal_eval(extra))
        if isinstance(package, ast.Constant):
            assert canonicalize_name(package.value) in brought
    assert "xformers" in packages_of("gpu")  # what lab.model.backends names, beside flash-attn
    assert "flash-attn" not in packages_of(*EXTRAS)  # which pip cannot build in isolation


@pytest.mark.parametrize("path", [*PAGES, *SOURCES, ROOT / "Makefile"], ids=lambda path: path.name)
def test_every_installation_line_names_extras_that_exist(path):
    text = path.read_text()
    assert "probe-lab[" not in text, "the package is on no index"
    for line in INSTALL.findall(text):
        assert set(asked_for(line)) <= EXTRAS.keys(), line
        assert not re.search(r"flash-attn\b(?!-)", line) or "--no-build-isolation" in line, line


def pins_of(text):
    return {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.M)}


def test_the_lock_holds_what_the_training_page_installs_at_the_versions_of_the_tests():
    page, lock = (ROOT / "docs" / "training.md").read_text(), (ROOT / "requirements.lock").read_text()
    (hashed,) = re.findall(r"`(pip install --require-hashes[^`]*)`", page)
    assert hashed.endswith(" requirements.lock")
    locked, tested = pins_of(lock), pins_of((ROOT / "constraints.txt").read_text())
    extras = [extra for line in INSTALL.findall(page) for extra in asked_for(line)]
    # Another torch than that of the lock, which pyproject allows, needs other packages.
    is_locked = metadata.version("torch").partition("+")[0] == locked["torch"].partition("+")[0]
    for need in needed_by(*extras):
        if is_locked and (not need.marker or need.marker.evaluate({"extra": ""})):
            assert need.specifier.contains(locked[canonicalize_name(need.name)], prereleases=True), str(need)
    assert {name: version for name, version in locked.items() if tested.get(name, version) != version} == {}
    entries = re.split(r"\n(?=[a-z])", lock)[1:]
    assert len(entries) == len(locked)
    assert all(re.search(r"\n --hash=sha256:[0-9a-f]{64}$", entry.rstrip()) for entry in entries)
