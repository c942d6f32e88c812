"""A public class and a public function of more than five lines have a docstring; a one-line body needs none."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHORT = 5  # lines of a definition, without decorators, that need no docstring


def undocumented(source):
    """Name the public classes and the longer public functions that have no docstring; nested functions are private."""
    faults, scopes = [], [ast.parse(source)]
    while scopes:
        for node in scopes.pop().body:
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
                continue
            is_class = isinstance(node, ast.ClassDef)
            if not ast.get_docstring(node) and (is_class or node.end_lineno - node.lineno >= SHORT):
                faults.append(node.name)
            if is_class:
                scopes.append(node)
    return faults


def test_public_classes_and_longer_functions_have_a_docstring():
    paths = [path for folder in ("lab", "eval", "experiments", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    faults = {str(path.relative_to(ROOT)): undocumented(path.read_text()) for path in paths}
    assert {path: names for path, names in faults.items() if names} == {}
