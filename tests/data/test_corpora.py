import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import os
import sysconfig
import tempfile
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from eval.engine.methods import expand
from lab.analysis.table import list_results
from lab.data.config import DataConfig, Dataset, Slimpajama, Stdlib, Text
from lab.data.corpora import TextDocument, cut_definitions, open_corpus
from lab.data.preparation import prepare
from lab.data.streaming import import_datasets
from lab.data.text_files import read_texts
from tests.data.stores import refused, text_config

TEXTS = ["one\nline", "zwei Wörter", "trois ☕ 三"]


def zst(data):
    return pyarrow.compress(data, codec="zstd", asbytes=True)


def read_all(corpus):
    reader = open_corpus(DataConfig(corpus=corpus))
    return [item for task in range(reader.n_tasks) for item in reader.read(task)]


def json_lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def parquet(lines):
    texts = [json.loads(line)["text"] for line in lines.decode().splitlines()]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), file := io.BytesIO())
    return file.getvalue()


LINES = json_lines({"text": text} for text in TEXTS)
ARRAY = json.dumps([{"text": text} for text in TEXTS]).encode()
CSV = "".join(["n,text\n", *(f'1,"{text}"\n' for text in TEXTS)]).encode()
FILES = {
    ".jsonl": LINES,
    ".JSONL.gz": gzip.compress(LINES),
    ".ndjson.xz": lzma.compress(LINES),
    ".jsonl.bz2": bz2.compress(LINES),
    ".jsonl.zst": zst(LINES),
    ".parquet": parquet(LINES),
}
TABLES = {
    ".json.gz": gzip.compress(ARRAY),
    ".csv": CSV,
    ".csv.zst": zst(CSV),
    ".tsv": CSV.replace(b",", b"\t"),
    ".jsonl.zst": zst(LINES),
    ".parquet": parquet(LINES),
}


@pytest.mark.parametrize("suffix", [*TABLES, "saved"])
def test_tables_become_documents_in_order(tmp_path, suffix):
    place = tmp_path / "tables"
    place.mkdir()
    if suffix == "saved":
        datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS})}).save_to_disk(str(place))
        (place / "train" / "cache-1.arrow").write_bytes(b"an older state")
    else:
        (place / f"part{suffix}").write_bytes(TABLES[suffix])
    assert read_all(Dataset(path=str(place))) == [TextDocument(text, "tables") for text in TEXTS]


@pytest.mark.parametrize("name", ["", "a.jsonl", "*.jsonl"])
def test_a_table_whose_name_the_library_takes_for_a_pattern_is_refused(tmp_path, name):
    (tmp_path / "a[b]").mkdir()
    (tmp_path / "a[b]" / "a.jsonl").write_bytes(LINES)
    assert len(read_all(Text(path=str(tmp_path / "a[b]")))) == len(TEXTS)
    with refused(f"data.corpus.path={tmp_path / 'a[b]' / name}: {'{}'}"):
        read_all(Dataset(path=str(tmp_path / "a[b]" / name)))


def test_numbers_in_a_csv_table_are_text(tmp_path):
    (tmp_path / "a.csv").write_text("text,year\n007,2001\n2.50,2002\n")
    corpus = Dataset(path=str(tmp_path), source="year")
    assert read_all(corpus) == [TextDocument("007", "2001"), TextDocument("2.50", "2002")]
    (tmp_path / "a.csv").write_text("body\n007\n")
    with refused("data.corpus.text=text: no such column in a.csv; use one of: body"):
        read_all(corpus)


ODD = [3, 2.5, None, True, ["a"], {"b": 1}]  # which are no text
WRITTEN = ['a "b" \\\\ c', "123", "null", "[1]", '{"a": 1}', "2024-01-01", "2024-01-01 10:00:00", "\u2028 ☕"]


@pytest.mark.parametrize("column", ["body", "doc.body"])
@pytest.mark.parametrize("form", ["lines", "list", "mark", "gz"])
@pytest.mark.parametrize("seed", range(3))
def test_texts_of_mixed_columns_are_as_written(tmp_path, column, form, seed):
    generator = np.random.default_rng(seed)
    values = [ODD[seed], *(generator.choice(np.array([*ODD, *WRITTEN * 9], dtype=object), 200))]
    rows = [{"body": value, "set": n % 3} for n, value in enumerate(values)]
    if column == "doc.body":
        rows = [{"doc": row if n % 50 else [row], "set": row["set"]} for n, row in enumerate(rows)]
        values[::50] = [None] * len(values[::50])
    data = json.dumps(rows).encode() if form == "list" else b"\xef\xbb\xbf" * (form == "mark") + json_lines(rows)
    (tmp_path / f"a.json{'.gz' * (form == 'gz')}").write_bytes(gzip.compress(data) if form == "gz" else data)
    dropped = f"no text in field {column!r}"
    expected = [TextDocument(v, str(n % 3)) if isinstance(v, str) else dropped for n, v in enumerate(values)]
    assert read_all(Dataset(path=str(tmp_path), text=column, source="set")) == expected


FORMS = {  # of JSON: the options in a data set's card, the content of a file, and its texts
    "latin": (
        "encoding: latin-1",
        '{"text": "zwei W\xf6rter"}\n{"text": "b"}\n'.encode("latin-1"),
        ["zwei W\xf6rter", "b"],
    ),
    "utf16": ("encoding: utf-16-le", LINES.decode().encode("utf-16-le"), TEXTS),
    "field": ("field: data", b'{"n": 1, "data": ' + ARRAY + b"}", TEXTS),
    "object": ("", json.dumps({"text": "a", "n": [1, 2]}, indent=1).encode(), ["a"]),
    "white_space": ("", b" \n" * 9000 + ARRAY, TEXTS),
    "empty": ("", b"\n", ["no document in a.json"]),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_json_file_is_read_as_its_card_states(tmp_path, name):
    options, data, texts = FORMS[name]
    (tmp_path / "a.json").write_bytes(data)
    card = f"---\nconfigs:\n- config_name: default\n  data_files: a.json\n  {options}\n---\n"
    (tmp_path / "README.md").write_text(card)
    assert [getattr(item, "text", item) for item in read_all(Dataset(path=str(tmp_path)))] == texts


def test_a_saved_column_of_json_is_decoded(tmp_path):
    values = pyarrow.array(['"one"', "3", None, '"tw\\"o"'], pyarrow.json_())
    pyarrow.parquet.write_table(pyarrow.table({"text": values}), tmp_path / "a.parquet")
    texts = [getattr(item, "text", item) for item in read_all(Dataset(path=str(tmp_path)))]
    assert texts == ["one", *["no text in field 'text'"] * 2, 'tw"o']


@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize("row", [None, 0, 1, 9_999, 10_000, 10_001])  # pandas reads 10,000 rows at a time
@pytest.mark.parametrize("extra", ["", "more"])
def test_a_row_with_a_field_more_than_the_header_is_refused(tmp_path, separator, row, extra):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator)
    texts = [f'a{separator}b "{n}"\nc' for n in range(10_010)]
    writer.writerows([["n", "text"], *([n, text, *[extra] * (n == row)] for n, text in enumerate(texts))])
    (tmp_path / f"a.{'tsv' if separator != ',' else 'csv'}").write_text(f"\ufeff{file.getvalue()}", newline="")
    if row is None:
        assert [item.text for item in read_all(Dataset(path=str(tmp_path)))] == texts
        return
    with refused(f"data.corpus.path={tmp_path}: {{}}a.{{}}{'first row' if row == 0 else 'line'}"):
        read_all(Dataset(path=str(tmp_path)))


def as_nobody(work):
    """Run work in a child process without root's permissions; return the error, or the result."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.setuid(65534)
        try:
            answer = str(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    return os.fdopen(read).read()


READS = {
    "folder": lambda path: read_all(Text(path=path)),
    "pattern": lambda path: read_all(Text(path=f"{path}/*/a.jsonl")),
    "deep": lambda path: read_all(Text(path=f"{path}/**/*.jsonl")),
    "dataset": lambda path: read_all(Dataset(path=path)),
    "--text": lambda path: read_texts(Path(path), "--text"),
    "results": lambda path: list_results(Path(path)),
    "runs": lambda path: expand([f"{path}/*/*"]),
}


@pytest.fixture
def shared():
    """A folder that every user may list; pytest closes those that are its own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="changes the user")
@pytest.mark.parametrize(
    ("closed", "mode", "unaffected"),  # what lists the names of files alone
    [("closed", 0, ()), ("closed", 0o444, ("results",)), ("closed/a.jsonl", 0, ("results", "runs"))],
)
@pytest.mark.parametrize("read", READS)
def test_what_cannot_be_opened_is_refused_with_its_reason(shared, read, closed, mode, unaffected):
    for name in ("open", "closed"):
        (shared / name).mkdir()
        (shared / name / "a.jsonl").write_bytes(LINES)
    import_datasets().load_dataset_builder("json", data_files=str(shared / "open" / "a.jsonl"))  # its imports
    (shared / closed).chmod(mode)
    answer = as_nobody(partial(READS[read], str(shared)))
    is_opened = read not in unaffected
    assert ("Permission denied" in answer) == (str(shared / closed) in answer and "Error" in answer) == is_opened, (
        answer
    )
    assert "truncated" not in answer


def test_a_source_is_a_column_or_a_path_without_its_suffixes(tmp_path):
    for name in ("a/x.jsonl", "b/x.jsonl.gz", "b/x.v1.JSONL"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(LINES) if name.endswith("gz") else LINES)
    assert {item.source for item in read_all(Text(path=str(tmp_path)))} == {"a/x", "b/x", "b/x.v1"}
    assert {item.source for item in read_all(Text(path=str(tmp_path / "b" / "x.v1.JSONL")))} == {"x.v1"}
    for column in ("meta", "meta.set", "text.set"):
        with refused(f"data.corpus.source={column}: no such column in a/x.jsonl; use one of: text"):
            read_all(Dataset(path=str(tmp_path), source=column))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("corpus", [Text, Dataset])
def test_a_compressed_file_of_no_bytes_is_truncated(tmp_path, suffix, corpus):
    (tmp_path / f"a.jsonl{suffix}").touch()
    with refused(f"{tmp_path}/a.jsonl{suffix}: is truncated"):
        read_all(corpus(path=str(tmp_path)))


def test_a_mark_is_no_text_and_a_file_without_a_document_is_named(tmp_path):
    mark = b"\xef\xbb\xbf"
    for name, data in {"a.txt": b"one\n", "b.jsonl": LINES, "c.jsonl": b"\n", "d.py": b"", "e.md": b"\xff"}.items():
        (tmp_path / name).write_bytes(mark * (name < "c") + data)
    items = read_all(Text(path=str(tmp_path)))
    assert [item.text for item in items[:4]] == ["one\n", *TEXTS]
    assert items[4:] == ["no document in c.jsonl", "empty", "not UTF-8", "no document in e.md"]
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.txt").write_bytes(mark + b"one\ntwo")
    assert read_all(Dataset(path=str(tmp_path / "t"))) == [TextDocument("one", "t"), TextDocument("two", "t")]


@pytest.mark.parametrize("corpus", [Text, Dataset])
def test_a_folder_is_reached_by_a_link(tmp_path, corpus):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.jsonl").write_bytes(LINES)
    (tmp_path / "link").symlink_to("texts")
    assert [item.text for item in read_all(corpus(path=str(tmp_path / "link")))] == TEXTS
    assert read_texts(tmp_path / "link", "--text") == TEXTS


def test_what_is_not_read_is_counted_by_its_type(tmp_path, capsys):
    names = "a.jsonl .git/a.jsonl b/.c.txt __pycache__/a.txt a.csv b.csv.gz a.json b/LICENSE"
    for name in names.split():
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_bytes(LINES)
    os.mkfifo(tmp_path / "corpus" / "c.txt")
    counted = "files read: {}; skipped: 1 .csv, 1 .csv.gz, {}3 hidden, 1 named pipes, 1 without a suffix\n"
    prepare(text_config(tmp_path, held_out_frac=0.0), progress=False)
    assert f"data: {counted.format(1, '1 .json, ')}" in capsys.readouterr().out
    (tmp_path / "corpus" / "a.json").write_text('{"text": "four"}')
    for _ in range(2):
        assert read_texts(tmp_path / "corpus", "--text") == ["four", *TEXTS]
    assert capsys.readouterr().err == f"--text={tmp_path / 'corpus'}: {counted.format(2, '')}"


@pytest.mark.parametrize("suffix", FILES)
def test_rows_become_documents_in_order(tmp_path, suffix):
    (tmp_path / f"part{suffix}").write_bytes(FILES[suffix])
    assert [item.text for item in read_all(Text(path=str(tmp_path)))] == TEXTS
    assert [item.text for item in read_all(Text(path=str(tmp_path / f"part{suffix}")))] == TEXTS
    assert read_texts(tmp_path, "--text") == TEXTS


def test_a_file_of_text_is_one_document_named_by_its_file(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "a.txt").write_bytes("first\r\nsecond ü".encode())
    (tmp_path / "deep" / "er" / "b.txt").write_text("other")
    (tmp_path / "deep" / "notes.md").write_text("# head")
    (tmp_path / "deep" / "code.py").write_text("import os")
    (tmp_path / "picture.png").write_text("no text")
    texts = {"a": "first\r\nsecond ü", "er/b": "other", "notes": "# head", "code": "import os"}
    whole = "a code er/b notes"
    expected = {"": whole, "*": whole, "*.txt": "a", "**/*.txt": "a er/b", "d*/[cn]*": "code notes"}
    for pattern, names in expected.items():
        documents = [TextDocument(texts[name], "deep/" * (name != "a") + name) for name in names.split()]
        assert read_all(Text(path=str(tmp_path / pattern))) == documents, pattern
    with refused(f"data.corpus.path={tmp_path / '*.rst'}: no file to read{{}}"):
        read_all(Text(path=str(tmp_path / "*.rst")))


def test_the_field_is_text_and_slimpajamas_rows_name_their_source(tmp_path):
    rows = [{"body": "x", "text": "y", "meta": {"redpajama_set_name": "web"}}, {"text": "z", "meta": {}}, {"text": "w"}]
    (tmp_path / "part.jsonl").write_bytes(json_lines(rows))
    assert read_all(Text(path=str(tmp_path)))[0] == TextDocument("y", "part")
    items = read_all(Slimpajama(path=str(tmp_path)))
    assert items == [TextDocument("y", "web"), TextDocument("z", "unknown"), TextDocument("w", "unknown")]


LINES_OF_NO_USE = {
    b'{"text": "caf\xe9"}': "not UTF-8",
    b'{"text": "\\ud800"}': "not UTF-8",
    b'{"text": "cut': "not JSON",
    b'{"text": "deep", "meta": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "not JSON",
    b'["text"]': "not a JSON object",
    b'{"text": ["a"]}': "no text in field 'text'",
    b'{"text": " \\n\\t "}': "empty",
}


@pytest.mark.parametrize(("line", "reason"), LINES_OF_NO_USE.items(), ids=itertools.count())
def test_a_line_that_cannot_be_used_is_skipped_with_its_reason(tmp_path, line, reason):
    (tmp_path / "part.jsonl").write_bytes(b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n')
    before, dropped, after = read_all(Text(path=str(tmp_path)))
    assert (before, after) == (TextDocument("before", "part"), TextDocument("after", "part"))
    assert dropped == reason


@pytest.mark.parametrize("kept", [0.5, 0.9, 0.999])
@pytest.mark.parametrize(
    ("corpus", "name", "pack"),
    [
        (Text, "part.jsonl.zst", zst),
        (Text, "part.jsonl.gz", gzip.compress),
        (Text, "part.parquet", parquet),
        (Dataset, "part.csv.zst", zst),
    ],
)
def test_a_truncated_file_is_one_line(tmp_path, kept, corpus, name, pack):
    # rows that do not compress to nothing, so that a cut falls between them
    rows = ({"text": f"{k} {k * 2654435761 % 2**32:x} {k * 40503 % 65536:x}"} for k in range(4000))
    whole = pack(b"text\n" * name.count("csv") + json_lines(rows))
    (tmp_path / name).write_bytes(whole[: int(kept * len(whole))])
    with refused(f"{tmp_path / name}: is truncated"):
        read_all(corpus(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("target", "path"), [("nowhere", ""), ("folder", ""), ("folder", "*/*.md"), ("folder", "**/*.md")]
)
def test_a_link_to_no_file_is_refused(tmp_path, target, path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "c.md").write_text("two")
    (tmp_path / "texts" / "a.txt").write_text("one")
    (tmp_path / "texts" / "b.txt").symlink_to(tmp_path / target)
    with refused(f"{tmp_path / 'texts' / 'b.txt'}: is a link"):
        read_all(Text(path=str(tmp_path / "texts" / path)))


def test_many_files_are_divided_among_512_tasks(tmp_path):
    """Of 1,100 files each is read once: the first 76 tasks read three, the others two."""
    for number in range(1100):
        (tmp_path / f"{number:04}.txt").write_text(f"text {number}")
    reader = open_corpus(DataConfig(corpus=Text(path=str(tmp_path))))
    assert reader.n_tasks == 512
    texts = [[item.text for item in reader.read(task)] for task in range(512)]
    assert [len(each) for each in texts] == [3] * 76 + [2] * 436
    assert sorted(itertools.chain.from_iterable(texts)) == sorted(f"text {number}" for number in range(1100))


CUTS = {
    "decorators": ["x = 1\n", "@one\n@two(3)\ndef f():\n    pass\n", "class A:\n    def g(self): ...\ny = 2\n"],
    "nested_is_not_cut": ["if x:\n    def f(): ...\n"],
    "crlf": ["x = 1\r\n", "def f():\r\n    pass\r\n"],
    "form_feed": ["x = 1\n\x0c\n", "def f(): ...\n"],
    "line_separator": ["x = 'a\u2028b'\n", "def f(): ...\n"],
    "null_byte": ["x = 1\x00\ndef f(): ...\n"],
    "empty": [],
}


@pytest.mark.parametrize("pieces", CUTS.values(), ids=CUTS)
def test_source_is_cut_before_each_definition(pieces):
    assert cut_definitions("".join(pieces)) == pieces


def test_reader_names_the_package_and_leaves_out_installed_ones():
    reader = open_corpus(DataConfig(corpus=Stdlib()))
    assert reader.n_tasks == 16
    files = [Path(name) for name in reader.listing.files]
    assert Path("json/decoder.py") in files
    assert not [path for path in files if "site-packages" in path.parts]
    task = files.index(Path("json/decoder.py")) % 16
    documents = [item for item in reader.read(task) if isinstance(item, TextDocument) and item.source == "json"]
    decoder = (Path(sysconfig.get_path("stdlib")) / "json/decoder.py").read_text()
    assert any(item.text in decoder and item.text.startswith("class JSONDecoder(object):") for item in documents)
