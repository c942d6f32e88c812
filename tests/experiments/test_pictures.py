"""The pictures that need no trained run are drawn by the commands as they are today."""

from pathlib import Path

import pytest
from PIL import Image

from experiments import pictures
from tests.forked import ROOT

pytest.importorskip("vl_convert")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("configs", "experiments"):
        Path(folder).symlink_to(ROOT / folder)
    Path("docs").mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["findings", "string_2k"])
def test_a_picture_is_drawn(name):
    pictures.plot_picture(name)
    assert Image.open(f"docs/{name}.png").width >= 900


def test_the_contact_sheet_has_every_picture_and_the_report():
    """Each picture of the pages is found on the sheet by its colour: one of a single colour each, and the report."""
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    for number, colour in enumerate(colours):
        Image.new("RGB", (1200, 400), colour).save(f"docs/{number}.png")
    pictures.write_sheet(Path("results/sheet.png"))
    sheet = Image.open("results/sheet.png")
    found = {colour: n for n, colour in sheet.getcolors(2**24)}
    assert [found[colour] for colour in colours] == [900 * 300] * 3
    assert len(found) > 20
