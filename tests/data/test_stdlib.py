import sysconfig
from pathlib import Path

import pytest

from lab.data.config import DataConfig, Stdlib
from lab.data.corpora import TextDocument, cut_definitions, open_corpus

STDLIB = Path(sysconfig.get_path("stdlib"))


@pytest.mark.parametrize(
    ("source", "pieces"),
    [
        pytest.param("import os\n\ndef f():\n    pass\n", ["import os\n\n", "def f():\n    pass\n"], id="function"),
        pytest.param(
            "x = 1\n@one\n@two(3)\ndef f():\n    pass\nclass A:\n    def g(self): ...\ny = 2\n",
            ["x = 1\n", "@one\n@two(3)\ndef f():\n    pass\n", "class A:\n    def g(self): ...\ny = 2\n"],
            id="decorators_and_class",
        ),
        pytest.param("if x:\n    def f(): ...\n", ["if x:\n    def f(): ...\n"], id="nested_is_not_cut"),
        pytest.param("x = 1\r\ndef f():\r\n    pass\r\n", ["x = 1\r\n", "def f():\r\n    pass\r\n"], id="crlf"),
        pytest.param("x = 1\n\x0c\ndef f(): ...\n", ["x = 1\n\x0c\n", "def f(): ...\n"], id="form_feed"),
        pytest.param("x = 'a\u2028b'\ndef f(): ...\n", ["x = 'a\u2028b'\n", "def f(): ...\n"], id="line_separator"),
        pytest.param("x = 1\x00\ndef f(): ...\n", ["x = 1\x00\ndef f(): ...\n"], id="null_byte"),
        pytest.param("", [], id="empty"),
    ],
)
def test_source_is_cut_before_each_definition(source, pieces):
    assert cut_definitions(source) == pieces


def test_reader_names_the_package_and_leaves_out_installed_ones():
    reader = open_corpus(DataConfig(corpus=Stdlib()))
    assert reader.n_tasks == 16
    files = [Path(name) for name in reader.listing.files]
    assert Path("json/decoder.py") in files
    assert not [path for path in files if "site-packages" in path.parts]
    task = files.index(Path("json/decoder.py")) % 16
    documents = [item for item in reader.read(task) if isinstance(item, TextDocument) and item.source == "json"]
    decoder = (STDLIB / "json/decoder.py").read_text()
    assert any(item.text in decoder and item.text.startswith("class JSONDecoder(object):") for item in documents)
