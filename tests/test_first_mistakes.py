"""What a stranger gets wrong first: refused in one line before time is spent, and nothing is left behind."""

import json
import os
import re
import resource
import subprocess
import sys
from functools import partial

import pytest

from eval.distance import FoundByDistance
from lab.data.preparation import prepare
from lab.train.dry_run import needed_here
from lab.train.environment import check_preflight
from tests.fits import command, load, settings_of
from tests.forked import LIMIT_S, ROOT, python
from tests.opened import write_run
from tests.refusals import refused


def ran(*words, path=ROOT, **options):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    options |= {"capture_output": True, "text": True, "timeout": LIMIT_S, "env": env}
    return subprocess.run([sys.executable, *words], check=False, **options)


def test_a_text_of_one_document_is_refused_before_it_is_tokenized(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"text": "tale of many"}\n')
    words = (f"--data.corpus={{name: text, path: {tmp_path / 'own.jsonl'}}}", "--data.held_out_frac=0.01")
    done = python(*command(tmp_path, "z", *words)[1:])
    corpus = f"corpus text ({tmp_path / 'own.jsonl'})"
    fault = f"data.held_out_frac=0.01: holds out none of the 1 documents of {corpus}"
    assert (done.returncode, fault in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.name == "tokenizer.json" or path.name.startswith("task-")]
    assert not (tmp_path / "runs").exists()


CORPORA = {
    "text": "{{name: text, path: {}/own.jsonl}}",
    "synthetic": "{{name: synthetic, documents: 1}}",
    "dataset": "{{name: dataset, path: {}}}",
    "conversations": "{{name: conversations, path: {}}}",
}


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_corpus_without_a_held_out_document_is_refused_before_ranks_start(tmp_path, corpus, is_prepared):
    (tmp_path / "texts").mkdir()
    turns = [{"from": who, "value": "tale"} for who in ("human", "gpt")]
    (tmp_path / "texts" / "own.jsonl").write_text(json.dumps({"text": "tale of many", "conversations": turns}))
    words = (f"--data.corpus={CORPORA[corpus].format(tmp_path / 'texts')}", "--data.held_out_frac=0.01")
    experiment = load(*settings_of(tmp_path, "z"), *words, "--train.devices=2")
    rule = "data.held_out_frac=0.01: holds out none of the 1 documents"
    if is_prepared:
        prepare(experiment.data, progress=False)
    elif corpus in ("dataset", "conversations"):
        rule = f"data.corpus.name={corpus}: not prepared"
        assert "not prepared" in needed_here(experiment)
    for check in (partial(check_preflight, resume=False), needed_here)[: 1 if "not" in rule else 2]:
        with refused(rule):
            check(experiment)


def test_a_picture_that_cannot_be_drawn_is_refused_before_any_test(prepared, tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "tiny", prepared)
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.setattr(FoundByDistance, "rows", lambda measure: pytest.fail("tests were run"))
    assert FoundByDistance.main([str(run), "--plot"]) == 2
    assert re.match(r"altair: not installed, .*\[plot\]", capsys.readouterr().err)


def test_a_device_is_no_config():
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30,) * 2)  # noqa: E731
    done = ran("-m", "lab.fit", "/dev/zero", preexec_fn=limit)
    assert (done.returncode, done.stderr.splitlines()[0][:30]) == (2, "/dev/zero: not YAML (longer th")


@pytest.mark.parametrize("module", ["torch", "tqdm"])  # of the command, and of the console command itself
def test_an_interrupt_while_a_command_imports_is_one_line(tmp_path, module):
    code = "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # as at a terminal
    (tmp_path / f"{module}.py").write_text(f"{code}os.kill(os.getpid(), signal.SIGINT)\n")
    done = ran("-m", "lab.cli", "distance", "runs/none", path=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (75, "", "stopped; nothing was written\n")


def test_an_import_of_the_lab_neither_checks_nor_ends_the_interpreter(tmp_path):
    (tmp_path / "statistics.py").write_text("import eval.scores\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import lab, eval\n")
    (tmp_path / "mine" / "train.py").write_text("print(__import__('lab').__all__ and 'trained')\n")
    (tmp_path / "script.py").write_text("import lab, eval\nprint('trained')\n")
    for words in ([str(tmp_path / "script.py")], ["-m", "mine.train"]):
        done = ran(*words, path=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
