"""Runs the cells of a notebook in this process; `python -m tests.notebooks NOTEBOOK` stores their outputs in it."""

import ast
import base64
import contextlib
import io
import json
import os
import sys
from pathlib import Path


def run_cell(source, names, number):
    """Run a cell; return what it prints and what its last expression is, as notebooks store them."""
    body, last = ast.parse(source).body, None
    if body and isinstance(body[-1], ast.Expr):
        last = ast.Expression(body.pop().value)
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        value = None if last is None else eval(compile(last, "<cell>", "eval"), names)
    outputs = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(True)}
        if hasattr(value, "_repr_png_"):
            data = {"image/png": base64.b64encode(value._repr_png_()).decode(), "text/plain": ["Picture"]}
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs


def run_notebook(path):
    """Run all cells of a notebook from its own folder, and return it with their outputs."""
    content, names = json.loads(path.read_text()), {"__name__": "__main__"}
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    with contextlib.chdir(path.parent):
        for number, cell in enumerate(cells, start=1):
            cell |= {"execution_count": number, "outputs": run_cell("".join(cell["source"]), names, number)}
    return content


if __name__ == "__main__":
    place = Path(os.path.abspath(sys.argv[1]))
    place.write_text(json.dumps(run_notebook(place), indent=1) + "\n")
