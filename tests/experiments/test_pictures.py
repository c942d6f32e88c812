"""The pictures that need no trained run are drawn by the commands as they are today."""

import pytest
from PIL import Image

from experiments import pictures
from tests.forked import ROOT

FREE = ["demand", "findings", "string_2k", "miniature"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_a_picture_is_drawn(name, tmp_path, monkeypatch):
    pytest.importorskip("vl_convert")
    monkeypatch.chdir(tmp_path)
    for folder in ("configs", "experiments"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "docs").mkdir()
    assert pictures.plot_picture(name) == 0
    assert Image.open(tmp_path / "docs" / f"{name}.png").width >= 900
