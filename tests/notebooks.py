"""Runs the cells of a notebook in this process; `python -m tests.notebooks NOTEBOOK` stores their outputs in it."""

import ast
import base64
import contextlib
import io
import json
import os
import sys
from pathlib import Path


def run_cell(source, names):
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
        outputs.append({"output_type": "execute_result", "execution_count": 0, "metadata": {}, "data": data})
    return outputs


def run_notebook(path):
    """Run all cells of a notebook from its own folder, and return it with their outputs."""
    content, names, number = json.loads(path.read_text()), {"__name__": "__main__"}, 0
    with contextlib.chdir(path.parent):
        for cell in content["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                outputs = run_cell("".join(cell["source"]), names)
                outputs = [o | ({"execution_count": number} if "execution_count" in o else {}) for o in outputs]
                cell |= {"execution_count": number, "outputs": outputs}
    return content


if __name__ == "__main__":
    place = Path(os.path.abspath(sys.argv[1]))
    place.write_text(json.dumps(run_notebook(place), indent=1) + "\n")
