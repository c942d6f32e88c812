"""Rows with the fields of the data sets that the papers use, read by the setting that docs/data.md names."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from eval.engine.texts import file_texts
from lab.data.config import Conversations, DataConfig, Slimpajama, Text
from lab.data.corpora import open_corpus

TURNS = [{"from": "human", "value": "Name a river."}, {"from": "gpt", "value": "The Rhine."}]
SETS = {  # name: corpus, a row of its fields, the text that is read
    "slimpajama": (Slimpajama, {"text": "web", "meta": {"redpajama_set_name": "RedPajamaC4"}}, "web"),
    "pg19": (
        Text,
        {"short_book_title": "A", "publication_date": 1900, "url": "http://a", "text": "Chapter"},
        "Chapter",
    ),
    "proof-pile": (Text, {"text": "Lemma 1.", "meta": "{}"}, "Lemma 1."),
    "pile-arxiv": (Text, {"text": "We prove", "meta": {"pile_set_name": "ArXiv"}}, "We prove"),
    "sharegpt": (Conversations, {"id": "x_0", "conversations": TURNS}, "USER: Name a river.\nASSISTANT: The Rhine.\n"),
    "ultrachat": (
        Conversations,
        {"prompt": "Name a river.", "prompt_id": "0", "conversations": TURNS},
        "USER: Name a river.\nASSISTANT: The Rhine.\n",
    ),
}


def documents(corpus):
    reader = open_corpus(DataConfig(corpus=corpus))
    return [item for task in range(reader.n_tasks) for item in reader.read(task)]


@pytest.mark.parametrize("name", SETS)
def test_rows_of_its_fields_become_documents(name, tmp_path):
    corpus, row, text = SETS[name]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/part.jsonl").write_text(json.dumps(row) + "\n")
    table = pyarrow.Table.from_pylist([row])
    pyarrow.parquet.write_table(table, tmp_path / "rows/part.parquet")
    assert [found.text for found in documents(corpus(path=str(tmp_path / "rows")))] == [text, text]


def test_govreports_text_is_in_report(tmp_path):
    (tmp_path / "part.jsonl").write_text(json.dumps({"report": "GAO found", "summary": "Found"}) + "\n")
    (found,) = documents(Text(path=str(tmp_path / "part.jsonl"), text_field="report"))
    assert found.text == "GAO found"


def test_texts_of_evaluations_are_lines_with_text_or_whole_files(tmp_path):
    (tmp_path / "books.jsonl").write_text(json.dumps(SETS["pg19"][1]) + "\n")
    (tmp_path / "essay.txt").write_text("July 2006")
    assert sorted(file_texts(tmp_path, "text")) == ["Chapter", "July 2006"]
