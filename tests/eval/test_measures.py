"""The contract of all measures: shared options, refusals, help, JSON, pictures, several models, and what is resumed."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lab import cli
from tests.eval.answering import Counted, silent
from tests.eval.commands import lines_of, size_of
from tests.eval.report.fakes import write_fake
from tests.eval.test_reach import write_runs
from tests.forked import ROOT
from tests.opened import adopted
from tests.refusals import check_faults

METHOD, FREQUENCY, PLOT = "--distance=rerope:window=9", "--frequency=ntk:factor=2", "--plot"
MODEL = (METHOD, FREQUENCY, PLOT)
COMMANDS = {  # words that measure little; of the shared options those that are taken, the others are refused
    "probe": (("RUN", "--tests=1", "--max_length=160", "--step=160", "--answer_budget=24"), MODEL),
    "distance": (("RUN", "--tests=1", "--points=2", "--window=96", "--digits=2"), MODEL),
    "heads": (("RUN", "--tests=1", "--points=2", "--window=96", "--digits=2"), MODEL),
    "ruler": (("RUN", "--tests=1", "--tasks=niah_single_2", "--lengths=512"), (METHOD, FREQUENCY)),
    "passkey": (("RUN", "--tests=1", "--protocol=lab", "--lengths=128", "--depths=2"), (METHOD, FREQUENCY)),
    "lines": (("RUN", "--tests=1", "--lengths=512"), (METHOD, FREQUENCY)),
    "perplexity": (("RUN", "--documents=1", "--lengths=16"), (METHOD, FREQUENCY)),
    "entropy": (("RUN", "--texts=1", "--lengths=16"), (METHOD, FREQUENCY)),
    "precision": (("RUN", "--texts=1", "--length=16", "--lengths=16", "--shifts=0"), (METHOD, FREQUENCY)),
    "recall": (("RUN", "--targets=9"), MODEL),
    "impact": (("RUN", "RUN", "--windows=2", "--length=16", "--min_count=1", "-o", "OUT"), ()),
    "compare": (("ROWS",), ()),
    "reach": (("RUNS", "--at=64"), ()),
    "report": (("FAKE",), ()),
    "frequency": (("--window=64", "--positions=8"), ()),
    "demand": (("CONFIG",), (PLOT,)),
    "positions": (("string:shift=3,window=0", "--length=9"), (PLOT,)),
    "harness": (("RUN", "--tasks=x"), (METHOD, FREQUENCY)),
}
ROW = {"metric": "passkey", "model": "m", "method": "rope+plain", "depth": 0.5, "length": 8, "n": 4, "score": 0.5}
LONG = ("harness", "demand")  # measured in tests of their own
MEASURES = [name for name, (words, taken) in COMMANDS.items() if METHOD in taken and name != "harness"]  # of one model
SCORED = ("passkey", "lines", "perplexity")  # one score with its limits a row
FOREIGN = {  # words that measure a folder of transformers
    **dict.fromkeys(("perplexity", "entropy", "precision", "recall"), ("--text=texts.jsonl",)),
    "probe": ("--haystack=words.txt", "--needles=2", "--digits=2"),
    "passkey": ("--haystack=words.txt", "--lengths=256"),
}
COLUMNS = {"model", "checkpoint", "weights", "commit", "hardware", "method", "precision", "protocol", "length", "n"}
COLUMNS |= {"score", "low", "high", "seed", "seconds"}
NEEDS = {"harness": "lm_eval", "report": "altair"}


def main_of(name):
    package = f"eval.{name}.__main__" if (ROOT / "eval" / name / "__main__.py").exists() else f"eval.{name}"
    return importlib.import_module(package).main


@pytest.fixture
def words_for(run_folder, hugging_face_folder, foreign, text_file, tmp_path, monkeypatch):
    """Make words that name what is there, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    places = {"RUN": run_folder, "OUT": tmp_path / "out", "FAKE": tmp_path / "fake", "LLAMA": hugging_face_folder}
    places |= {"CONFIG": ROOT / "configs" / "cpu_demo.yaml", "ROWS": tmp_path / "rows.jsonl", "RUNS": "runs/*"}

    def make(words):
        if "FAKE" in words and not places["FAKE"].exists():
            write_fake(places["FAKE"])
        if "RUNS" in words and not (tmp_path / "runs").exists():
            write_runs(tmp_path / "runs")
        if "GPT2" in words:
            places["GPT2"] = foreign("gpt2")
        (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
        return [str(places.get(word, word)) for word in words]

    return make


@pytest.fixture
def run(words_for, capsys):
    """Run a command's words: its status, output, and errors but for the lines of its bar."""

    def run(name, words):
        words = words_for(words)
        capsys.readouterr()  # what writing a model has shown
        status = main_of(name)(words)
        out, err = capsys.readouterr()
        return status, out, "".join(line for line in err.splitlines(keepends=True) if not line.startswith(f"{name}: "))

    return run


def test_every_evaluation_is_in_the_table():
    found = {name for name, (module, _) in cli.commands().items() if module.startswith("eval.")}
    assert found - {"papers", "generate"} == set(COMMANDS)  # which run the others, and measure nothing


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "report" else ()) for name in COMMANDS if name not in LONG],
)
def test_json_is_one_object_and_nothing_else(name, run):
    words, taken = COMMANDS[name]
    pytest.importorskip("altair" if PLOT in taken else NEEDS.get(name, "json"))
    status, out, err = run(name, [*words, *taken, "--json"])
    assert status == 0, err
    found = json.loads(out, parse_constant=pytest.fail)
    assert (list(found), found["command"]) == (["command", "rows", "files", "pictures"], name)
    assert bool(found["pictures"]) == (PLOT in taken)
    assert all(min(size_of(Path(path))) > 300 for path in found["pictures"])
    assert found["rows"]
    assert all(isinstance(row, dict) for row in found["rows"])
    for row in found["rows"] if name in SCORED else ():
        assert set(row) >= COLUMNS
        assert (row["model"], row["precision"], len(row["weights"])) == ("tiny", "float32", 16)
        assert row["checkpoint"].startswith("tokens-")
        assert None in (row["score"], row["low"]) or row["low"] <= row["score"] <= row["high"]
    if METHOD in taken:
        assert {row["method"] for row in found["rows"]} == {"ntk(factor=2)+rerope(window=9)"}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_makes_no_sense_is_refused_by_name(name, run):
    words, taken = COMMANDS[name]
    for option in {*MODEL} - {*taken}:
        status, out, err = run(name, [*words, option])
        line = f"{option.partition('=')[0]}: is no option of this command; leave it out\n"
        assert (status, out, err) == (2, "", line)


@pytest.mark.parametrize("name", MEASURES)
def test_any_causal_model_of_transformers_is_measured(name, run, foreign, text_file, tmp_path):
    words, taken = COMMANDS[name]
    texts = [{"text": f"{text_file.read_text()} {n}"} for n in range(3)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    rotary, learned = (str(foreign(family)) for family in ("gpt_neox", "gpt2"))
    words = [word for word in words[1:] if word != "--lengths=128"]
    words += [*FOREIGN.get(name, ()), "-o", "out", "--json"]
    other = [option for option in taken if option != PLOT]
    for asked, method in (([], "rope+plain"), (other, "ntk(factor=2)+rerope(window=9)")):
        status, out, err = run(name, [rotary, *words, *asked])
        assert status == 0, err
        assert {row["method"] for row in json.loads(out)["rows"]} == {method}
    assert ("haystack: text that the lab generates" in err) == (
        name in ("distance", "heads")
    )  # which name no haystack here
    status, out, err = run(name, [learned, *words])
    if name == "precision":  # which is about rotation
        assert (status, err.count("\n"), err[:19]) == (2, 1, "position: own+plain")
    else:
        assert (status, {row["method"] for row in json.loads(out)["rows"]}) == (0, {"own+plain"}), err
    status, out, err = run(name, [learned, *words, other[0]])
    *before, line = err.splitlines()
    assert (status, out, len(before), line[:22]) == (2, "", name == "distance", "model=GPT2LMHeadModel:")


@pytest.mark.parametrize("name", ["distance", "passkey", "recall", "probe", "entropy", "precision"])
def test_two_models_are_measured_in_turn(name, run, run_folder, tmp_path):
    for link in ("again", "alike"):
        (tmp_path / link).symlink_to(run_folder)
    words = [str(tmp_path / "a*"), *COMMANDS[name][0][1:], "-o", "out"]
    status, out, _ = run(name, words)
    assert status == 0
    assert [out.count(f"written to out/{link}") for link in ("again", "alike")] == [1, 1]
    assert out.count("tiny: rope+plain; ") + out.count("tiny, window 96; ") == 2  # a title names what is measured
    status, out, _ = run(name, [*words, "--json"])
    found = json.loads(out)
    assert {Path(file).parts[1] for file in found["files"][:2]} == {"again", "alike"}
    assert len(found["rows"]) % 2 == 0


@pytest.mark.parametrize("name", ["distance", "passkey", "recall"])
def test_two_models_measured_into_one_folder_both_stay(name, run, run_folder, tmp_path):
    for model in ("one", "other"):
        shutil.copytree(run_folder, tmp_path / model, ignore=shutil.ignore_patterns("eval"))
        assert run(name, [str(tmp_path / model), *COMMANDS[name][0][1:], "-o", "out"])[0] == 0
    rows = lines_of("out", name)
    sizes = [sum(row["model"] == model for row in rows) for model in ("one", "other")]
    assert sizes[0] == sizes[1] > 0


PROBED = "--step=64 --max_length=256 --answer_budget=24"
STOPPED = {  # three tests of each kind and more
    "probe": f"probe --tests=3 {PROBED}",
    "probe_by_depth": "probe --by=depth --lengths=200,320 --tests=3 --answer_budget=24",
    "distance": "distance --tests=3 --points=2 --window=96 --digits=2 --distance=plain,rerope:window=9",
    "ruler": "ruler --tests=3 --tasks=niah_single_2,vt --lengths=512",
    "passkey": "passkey --tests=3 --protocol=lab --lengths=128 --depths=2",
    "lines": "lines --tests=3 --lengths=512",
}


@pytest.mark.parametrize("kind", STOPPED)
def test_a_stopped_measure_goes_on_and_ends_as_one_that_was_not(kind, run, monkeypatch):
    """After Ctrl-C between batches, and a line that a crash tore, the same command asks only what has no answer."""
    name, *own = STOPPED[kind].split()
    words, rows = ["RUN", *own, "--batch=2", "--json", "-o"], []

    def asked(folder, stop_after=None):
        with monkeypatch.context() as patch:
            counted = Counted(patch, stop_after=stop_after, greedy=silent)
            status, out, err = run(name, [*words, folder])
        rows.append([{**row, "seconds": 0} for row in json.loads(out)["rows"]] if out else err)
        return counted.prompts, status

    (whole, _), (before, status) = asked("whole"), asked("out", stop_after=2)
    assert (status, rows[1]) == (75, "stopped; the same command continues\n")
    kept = [*Path("out").glob("*.jsonl")]
    for path in kept:
        path.write_text(path.read_text() + '{"test": 1, "pro')
    assert (asked("out"), asked("out")) == ((whole - before, 0), (0, 0))
    assert 0 < before < whole
    assert rows[0] == rows[2] == rows[3]
    assert kept


@pytest.mark.parametrize(("name", "options"), [("reach", ["--at=64"]), ("compare", []), ("report", ["-o", "a.png"])])
def test_a_pattern_leaves_out_what_is_no_run_and_a_name_does_not(name, options, run, tmp_path, monkeypatch):
    monkeypatch.setattr("eval.reach.fit", lambda *_: None)
    write_runs(tmp_path / "runs")
    (tmp_path / "runs/other").mkdir()
    (tmp_path / "runs/a.png").write_bytes(b"")
    pattern = run(name, ["runs/*", *options])
    note = "runs/*: skipped a.png, other, which this command does not take\n"
    assert (pattern[0], pattern[2]) == (0, note)
    assert run(name, ["runs/[0-9]*", *options]) == (0, pattern[1], "")
    status, _, err = run(name, ["runs/other", "runs/160-80-0", *options])
    assert (status, err.count("\n"), err.startswith("runs/other: ")) == (2, 1, True)


@pytest.mark.parametrize("name", [*MEASURES, "impact"])
@pytest.mark.parametrize("factor", [float("nan"), 1e38], ids=["nan", "overflow"])
def test_weights_that_are_not_finite_or_overflow_are_one_line(name, factor, run, run_folder, tmp_path):
    broken = shutil.copytree(run_folder, tmp_path / "broken")
    (file,) = broken.glob("checkpoints/*/weights-*.safetensors")
    weights = load_file(file)
    weights["blocks.0.attention.k.weight"][0] *= factor
    weights["blocks.2.feed_forward.up.weight"] *= factor
    save_file(weights, file)
    adopted(broken)
    status, out, err = run(name, [str(broken) if word == "RUN" else word for word in COMMANDS[name][0]])
    assert (status, out) == (2, "")
    assert err.count("NaN or infinite values") == 1
    assert ("blocks.0.attention.k.weight" in err) == (factor != 1e38)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_copies_of_a_command_are_refused(name, run, monkeypatch):
    monkeypatch.setenv(name, "2")
    status, out, line = run("passkey", COMMANDS["passkey"][0])
    assert (status, out, line.count("\n")) == (2, "", 1)
    assert line.startswith(f"{name}=2: 2 copies of this command were started")


TOO_LONG = "--{}=513: must be <= 512, the positions that gpt2 has"
REFUSED = [  # a command, its words, and the beginning of its one line
    ("passkey", "GPT2 --lengths=64,513", TOO_LONG.format("lengths")),
    ("precision", "GPT2 --length=513", TOO_LONG.format("length")),
    ("distance", "GPT2 --window=513", TOO_LONG.format("window")),
    ("probe", "GPT2 --max_length=513", TOO_LONG.format("max_length")),
    ("probe", "GPT2 --haystack=words.txt --needles=16 --digits=9 --answer_budget=400", "model=gpt2: has 512 positions"),
    ("passkey", "--seed=1", "--seed=1: MODEL must be the first argument"),
    ("passkey", "OUT --lengths=128", "{}out: no such"),
    ("passkey", "RUN --lengthsx=1", "--lengthsx=1: unknown setting; did you mean lengths?"),
    ("passkey", "RUN --lengths=128 --depths=2 -o rows.jsonl/x", "-o rows.jsonl/x: cannot be written (Not a directory)"),
    ("ruler", "RUN --tasks=niah_singel_1", "--tasks=niah_singel_1: no such task; did you mean niah_single_1?"),
    (
        "ruler",
        "RUN --tasks=vt --lengths=100 --tests=2",
        "--lengths=100: too short for test 0 of vt with its answer; use ",
    ),
    ("ruler", "RUN --tasks=qa_1 --squad=none.json", "--squad=none.json: is not of SQuAD's form (FileNotFoundError"),
    ("ruler", "RUN --last=99", "--last=99: "),
    ("probe", "RUN --error=0.1", "--error=0.1: would be ignored; leave it out"),
    ("probe", "RUN --lengths=320", "--lengths=[320]: would be ignored with --by=length; leave it out"),
    ("probe", "RUN --by=depth --depths=10", "--depths=10: must be a multiple of the 4 needles, each of which has"),
    ("probe", "RUN --by=depth --lengths=20", "--lengths=20: too short for the needle test: its fixed parts and"),
    ("probe", "RUN --distance=rope,dca --by=depth", "--distance=rope,dca: --by=depth takes one method; leave --by out"),
    ("probe", "RUN --distance=rope,strng", "--distance=strng: unknown method; did you mean string?"),
    ("probe", "RUN --haystack=none.txt", "--haystack=none.txt: no such file; give a .txt, .md, .py, .json or .jsonl"),
    ("perplexity", "b*", "b*: matches no folder"),
    ("perplexity", "RUN --stride=300", "--stride=300: must be <= 16, the shortest length, or tokens are passed over"),
    ("perplexity", "RUN --protocol=whole-windows --documents=2", "--documents=2: all documents are joined; leave it"),
    ("passkey", "RUN --lengths=20", "--lengths=20: too short for "),
    ("passkey", 'RUN --frequency=rope --position={"frequency":{"method":"pi"}}', "--position.frequency.method: would"),
    (
        "lines",
        "RUN --apply_chat_template",
        "--apply_chat_template: tiny has none, as it was trained on no conversations",
    ),
    (
        "lines",
        "RUN --chat_template=none.jinja",
        "--chat_template=none.jinja: cannot be read (No such file or directory)",
    ),
    ("impact", "LLAMA RUN -o OUT", "BASE={}: its tokenizer is not that of TUNED; give the model that was tuned"),
    (
        "recall",
        "RUN --text=words.txt",
        "--text=words.txt: no bin has 8 targets with evidence in two of its 1 documents",
    ),
    ("compare", "nowhere", "nowhere: no such file or folder"),
    ("positions", "strng --length=9", "METHOD=strng: unknown method; did you mean string?"),
    ("positions", "string --shift=3 --windw=0 --length=0", "--length=0: must"),
    ("positions", "string --shift=3 --windw=0 --length=9", "--windw=0: unknown setting"),
    ("positions", "pose --n_tokens=9 --target_len=8", "--target_len=8: must be "),
    ("demand", "CONFIG --evidence.method=rhyme", "evidence.method=rhyme: unknown"),
    ("demand", "RUN --data.window=9", "--data.window: would be ignored, a run has counted; name "),
    ("demand", "nowhere.yaml", "nowhere.yaml: cannot be read (No such file or directory)"),
    ("frequency", "--corpus=none --positions=8", "--corpus=none: must be slimpajama or a folder of token shards"),
    ("report", "FAKE -o x.pdf", "x.pdf: must end in .png or .svg; rename the picture"),
    ("reach", "--at=64", "RUN: must come first, the folders of one or more runs; for instance runs/cpu_demo"),
    ("reach", "RUNS nowhere", "nowhere: no such folder"),
    ("reach", "RUNS runs/160-160-0", "160-160-0: must be the name of one folder only; rename the others"),
    ("reach", "RUNS --at=500", "RUNS: no probe has reach and f at 500 tokens; name runs that probed and counted"),
]


@pytest.mark.parametrize(("name", "words", "line"), REFUSED, ids=[words for _, words, _ in REFUSED])
def test_a_mistake_is_one_line(name, words, line, run):
    status, out, err = run(name, words.split())
    assert (status, out) == (2, "")
    check_faults(err.splitlines(), line.split("\n"))
