"""Imports point one way, are made at the top, and bring heavy packages only where those are used.

The contracts of import-linter and ruff's TID253, both in pyproject.toml, check most of it; here is the rest.
"""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
LIGHT = (  # import no torch, so that a mistake in a config is reported at once
    *("lab.config", "lab.fit", "lab.sweep.__main__", "lab.prepare", "lab.verify", "lab.longrecipe.__main__", "lab.cli"),
    *("lab.runs.folder", "lab.positions", "lab.skip", "lab.model.huggingface.config", "eval.needles", "eval.positions"),
)
WITH_TABLES = ("lab.integrations.retrieval", *(f"eval.{name}" for name in ("compare", "demand", "impact", "reach")))
WITH_TABLES += ("eval.report.__main__", "eval.ruler.__main__")
HEAVY = {"torch", "lightning", "wandb", "datasets", "pyarrow", "pandas", "transformers", "lm_eval"}
HEAVY |= {"flash_attn", "xformers", "triton", "altair", "vl_convert"}


def test_the_contracts_of_import_linter_are_kept():
    words = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_module_imports_itself_through_others():
    graph = grimp.build_graph("lab", "eval", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError with the modules


def local_imports(node, is_local=False):
    """List the imports of lab and eval inside functions; a command loads torch last, so its guard may hold some."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
        return []
    if isinstance(node, (ast.Import, ast.ImportFrom)) and is_local:
        modules = [node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        return [module for module in modules if module.split(".")[0] in ("lab", "eval", "")]
    is_local = is_local or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    return [module for child in ast.iter_child_nodes(node) for module in local_imports(child, is_local)]


SOURCES = sorted([*ROOT.glob("lab/**/*.py"), *ROOT.glob("eval/**/*.py")])


def test_our_own_modules_are_imported_at_the_top():
    assert [(path, found) for path in SOURCES if (found := local_imports(ast.parse(path.read_text())))] == []


def test_no_import_of_a_heavy_package_is_tried_at_the_top():  # which TID253 passes over
    tried = [node for path in SOURCES for node in ast.parse(path.read_text()).body if isinstance(node, ast.Try)]
    assert not HEAVY & {word for node in tried for word in re.findall(r"\w+", ast.unparse(node))}


def test_packages_hold_re_exports_only():
    assert [path for path in SOURCES if path.name == "__init__.py" and path.read_text().count("\n") > 40] == []


LOAD = """
import importlib, sys
packages = lambda: {name.split(".")[0] for name in sys.modules}
for module in sys.argv[1:]:
    before = packages()
    importlib.import_module(module)
    print(module, *packages() - before)
"""


def test_modules_load_nothing_heavy_beyond_what_they_need():
    words = [sys.executable, "-c", LOAD, *LIGHT, "lightning", "lab.train.run", "pandas", *WITH_TABLES]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {module: HEAVY & set(names) for module, *names in map(str.split, done.stdout.splitlines())}
    assert "torch" in loaded.pop("lightning")
    loaded.pop("pandas")
    assert loaded == {module: set() for module in (*LIGHT, "lab.train.run", *WITH_TABLES)}
