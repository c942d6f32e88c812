import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHORT = 5  # lines of a definition, without decorators, that need no docstring


def undocumented(source):
    """Name the public classes and the longer public functions that have no docstring; nested functions are private."""
    faults, scopes = [], [ast.parse(source)]
    while scopes:
        body = scopes.pop().body
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
        functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
        longer = [node for node in functions if node.end_lineno - node.lineno >= SHORT]
        faults += [node.name for node in (*classes, *longer) if not ast.get_docstring(node)]
        scopes += classes
    return faults


def test_public_classes_and_longer_functions_have_a_docstring():
    paths = [path for folder in ("lab", "eval", "experiments", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert [(path, names) for path in paths if (names := undocumented(path.read_text()))] == []
