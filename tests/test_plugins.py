"""Plugins: what a file adds, what is refused, and what a run keeps and who may execute it."""

import re
import shlex
import shutil
from operator import attrgetter

import pytest

from lab.core import plugins
from lab.core.errors import ConfigError
from lab.core.launch import in_processes
from lab.core.schema import OneOf, adapter
from lab.data.corpora import open_corpus
from lab.positions import FREQUENCY_METHODS, frequencies, pi
from tests.eval.commands import lines_of
from tests.fits import CONFIG, UNPROBED, fit, load
from tests.forked import ROOT, python
from tests.opened import write_run
from tests.test_contributing import METHOD

TEXT = (ROOT / "docs" / "plugins.md").read_text()
PAGE = re.findall(r"```python\n(\"\"\".*?)```", TEXT, re.S)
CORPUS, COMMAND = PAGE
SETTINGS = [f"--position.frequency.{word}" for word in ("method=partial_pi", "factor=4", "train_len=12")]
SHORT = (*UNPROBED, "--train.tokens=6144", "--train.checkpoint_every_tokens=2048")


def written(path, text):
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def restored():
    """Take everything that a test loads out of the tables again."""
    tables = [(kind.table, dict(kind.table)) for kind in OneOf.every]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)
    plugins.LOADED.clear()
    adapter.cache_clear()


@pytest.fixture
def method(tmp_path):
    return written(tmp_path / "partial.py", METHOD)


@pytest.fixture
def corpus(tmp_path):
    return written(tmp_path / "steps.py", CORPUS)


def test_a_method_joins_the_settings_the_tables_and_the_messages(method):
    before, plugin = load(), f"--plugins=[{method}]"
    found = load(plugin, *SETTINGS)
    assert found.position.frequency.method == "partial_pi"
    assert found.plugins == (str(method),)
    # pairs of 1 and 0.1 radians turn once in 6.3 and 62.8 tokens; the second never within 12
    assert frequencies("partial_pi", head_dim=4, theta=100.0, factor=4.0, train_len=12).inv_freq.tolist() == [1, 0.025]
    for word, line in (
        ("factor=0.5", r"position.frequency.factor=0.5: must be >= 1; Factor s"),
        ("factr=2", "did you mean position.frequency.factor"),
        ("method=partial_pj", "did you mean partial_pi"),
    ):
        kept = [other for other in SETTINGS if word.partition("=")[0] not in other]
        with pytest.raises(ConfigError, match=line):
            load(plugin, *kept, f"--position.frequency.{word}")
    assert load() == before


REFUSED = {  # file, its source and the line
    "missing": ("/nowhere/mine.py", "", "cannot be read (No such file or directory); name a Python file"),
    "nothing": ("mine.py", "X = 1", "defines no method, corpus or measure; derive a class from one of "),
    "broken": ("mine.py", "def f(:", "SyntaxError, line 1 ("),
    "failing": ("mine.py", "import nowhere_at_all", "ModuleNotFoundError (No module named 'nowhere_at_all'); correct"),
    "taken": ("mine.py", METHOD.replace('"partial_pi"', '"pi"'), f"method: pi is taken by {pi.__file__}; name it "),
    "pythons_own": ("queue.py", "raise SystemExit", "would take the place of Python's own module queue "),
}


@pytest.mark.parametrize(("name", "source", "rule"), REFUSED.values(), ids=REFUSED)
def test_what_adds_nothing_is_one_line(tmp_path, name, source, rule):
    path = tmp_path / name
    if path.parent.exists():
        path.write_text(source)
    with pytest.raises(ConfigError) as caught:
        load(f"--plugins=[{path}]")
    [line] = caught.value.errors
    assert line.startswith(f"plugins={path}: {rule}")
    assert "partial_pi" not in FREQUENCY_METHODS


def test_files_of_one_name_are_refused(method, tmp_path):
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other" / method.name, METHOD.replace("partial_pi", "partial_too"))
    with pytest.raises(ConfigError, match="must have names of their own"):
        load(f"--plugins=[{method}, {other}]")


@pytest.mark.slow
def test_the_commands_of_the_page_run_in_the_folder_of_its_files(tmp_path):
    (tmp_path / "configs").mkdir()
    shutil.copy(CONFIG, tmp_path / "configs")
    (tmp_path / "partial_pi.py").write_text(METHOD)
    for name, source in zip(("steps", "copies"), PAGE, strict=True):
        assert f"`{name}.py`" in TEXT or f"python {name}.py" in TEXT
        (tmp_path / f"{name}.py").write_text(source)
    blocks = re.findall(r"```\n(probe-lab .*?)```", TEXT.replace("\\\n", " "), re.S)
    found = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert len(found) == 3
    for _, *words in found:
        done = python("-m", "lab.cli", *words, cwd=tmp_path)
        assert done.returncode == 0, f"{words}\n{done.stderr}"


def test_a_corpus_is_read_and_its_source_names_its_shards(corpus):
    words = ("--data.corpus.name=numbers", "--data.corpus.n=3", f"--plugins=[{corpus}]")
    data = load(*words).data
    [first, second, _] = open_corpus(data).read(0)
    assert (first.source, second.text[:8]) == ("numbers", "0 1 2 3 ")
    plugins.LOADED.clear()
    next(kind for kind in OneOf.every if kind.tag == "name").table.pop("numbers")
    corpus.write_text(corpus.read_text().replace("range(60)", "range(61)"))
    assert load(*words).data.shard_name != data.shard_name


def test_a_measure_of_finished_models_is_a_command(prepared, tmp_path):
    run, file = str(write_run(tmp_path / "tiny", prepared)), str(written(tmp_path / "copies.py", COMMAND))
    code = f"import runpy, sys; sys.argv[0] = {file!r}; runpy.run_path({file!r}, run_name='__main__')"
    done = python("-c", code, run, "--texts=2", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "first copy" in done.stdout
    [row] = lines_of(tmp_path, "copies")
    assert {"first", "second", "model", "seed"} <= row.keys()
    assert row["first"] > 0
    done = python("-c", code, run, "--texts=0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "texts=0: must be >= 1" in done.stderr


def test_workers_load_the_plugins(corpus):
    data = load("--data.corpus.name=numbers", "--data.corpus.n=3", f"--plugins=[{corpus}]").data
    done = []
    in_processes(attrgetter("corpus.n"), [data, data], 2, lambda: done.append(1))
    assert len(done) == 2


def test_a_run_keeps_its_plugins_and_executes_them_only_where_they_are_trusted(method, corpus, tmp_path):
    own = (f"--plugins=[{method}, {corpus}]", *SETTINGS)
    numbers = ("--data.corpus.name=numbers", "--data.corpus.n=300", f"--data.folder={tmp_path / 'shards'}")
    done = python("-m", "lab.prepare", str(CONFIG), *own, *numbers)
    assert done.returncode == 0, done.stderr
    run = fit(tmp_path, "mine", *own, *SHORT)
    kept = run / "plugins"
    assert {path.name: path.read_text() for path in kept.iterdir()} == {method.name: METHOD, corpus.name: CORPUS}
    method.write_text(METHOD + "\n# changed\n")
    again = ["-m", "lab.fit", str(CONFIG), *own, *SHORT, "--run.name=mine", f"--run.folder={tmp_path / 'runs'}"]
    done = python(*again, f"--data.folder={tmp_path / 'shards'}", "--resume")
    assert done.returncode == 2
    assert f"plugins={method}: differs from {kept / method.name}" in done.stderr
    method.unlink()  # evaluations need the run folder alone, or what is exported of it
    out = tmp_path / "out"
    done = python("-m", "lab.export", str(run), "--weights_only", "--trust", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (out / "plugins").iterdir()} == {method.name, corpus.name}
    for folder, rows, name in ((run, run / "eval", "partial_pi(factor=4,train_len=12)"), (out, tmp_path / "r", "rope")):
        words = ["-m", "eval.perplexity", str(folder), "--lengths=32", "--documents=4", "-o", str(rows)]
        done = python(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"{folder / 'plugins' / method.name}: is code that {folder}" in done.stderr
        done = python(*words, "--trust")
        assert done.returncode == 0, done.stderr
        assert name in next(rows.glob("perplexity-*.jsonl")).read_text()
