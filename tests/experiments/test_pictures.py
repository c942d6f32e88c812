"""The pictures that need no trained run are drawn by the commands as they are today."""

from pathlib import Path

import pytest
from PIL import Image

from experiments import pictures
from tests.forked import ROOT

FREE = ["findings", "string_2k"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_a_picture_is_drawn(name, tmp_path, monkeypatch):
    pytest.importorskip("vl_convert")
    monkeypatch.chdir(tmp_path)
    for folder in ("configs", "experiments"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "docs").mkdir()
    pictures.plot_picture(name)
    assert Image.open(tmp_path / "docs" / f"{name}.png").width >= 900


def test_the_contact_sheet_has_every_picture_and_the_report(tmp_path, monkeypatch):
    """Each picture of the pages is found on the sheet by its colour: one of a single colour each, and the report."""
    pytest.importorskip("vl_convert")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "docs").mkdir()
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    for number, colour in enumerate(colours):
        Image.new("RGB", (1200, 400), colour).save(tmp_path / f"docs/{number}.png")
    pictures.write_sheet(Path("results/sheet.png"))
    sheet = Image.open("results/sheet.png")
    found = {colour: n for n, colour in sheet.getcolors(2**24)}
    assert [found[colour] for colour in colours] == [900 * 300] * 3
    assert len(found) > 20
