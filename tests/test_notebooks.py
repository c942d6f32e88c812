"""Every notebook runs from top to bottom, and holds small outputs of that."""

import json
import shutil

import pytest

from tests.forked import ROOT
from tests.notebooks import run_notebook


@pytest.mark.parametrize("notebook", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_outputs_are_of_the_same_kinds(notebook, tmp_path):
    pytest.importorskip("altair")
    for folder in ("notebooks", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    found = run_notebook(tmp_path / "notebooks" / notebook.name)
    stored = json.loads(notebook.read_text())
    assert notebook.stat().st_size < 250_000
    assert kinds(stored) == kinds(found)
    assert sum(map(len, kinds(found))) >= 5


def kinds(content):
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    return [[(o["output_type"], *sorted(o.get("data", ()))) for o in cell["outputs"]] for cell in cells]
