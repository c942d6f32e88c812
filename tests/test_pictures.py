"""The pictures that need no trained run are drawn by the commands as they are today."""

from pathlib import Path

import pytest
from PIL import Image

from docs import pictures
from tests.forked import ROOT

pytest.importorskip("vl_convert")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("configs", "experiments"):
        Path(folder).symlink_to(ROOT / folder)
    Path("docs").mkdir()
    Path("docs/figures.py").symlink_to(ROOT / "docs/figures.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["findings", "string_2k"])
def test_a_picture_is_drawn(name):
    pictures.plot_picture(name)
    assert Image.open(f"docs/{name}.png").width >= 700
