"""What all commands share: words, help, statuses, and the console command that runs each of them."""

import dataclasses
import importlib
import itertools
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from unittest.mock import Mock

import pytest

from lab import cli
from lab.config import Experiment
from lab.core import command
from lab.core.arguments import TEXTS
from lab.core.command import CommandSpec
from lab.core.errors import ConfigError
from lab.core.files import AGAIN
from lab.core.schema import iterate_settings
from tests.forked import ROOT
from tests.refusals import refused

OPTIONS_OF = {  # without a class; of an evaluation -o, --json and those of its class
    "fit": {"--resume", "--dry_run", "--memory_gib", "-o", "--plugins"},
    "longrecipe": {"--launcher", "--folder"},
    "sweep": {"--jobs", "--seeds", "--index", "--dry_run"},
    "export": {"-o", "--weights_only"},
    "papers": {"--mini", "-o"},
    "prepare": {"--workers", "--task"},
    "merge": {"-o", "--weights"},
    "verify": set(),
    "generate": {"--tokens", "--device"},
    "distance": {"--tests", "--distances", "--plot", "--distance"},
}
SOME = {  # settings beyond those of a form
    "distance": ("position.distance.method",),
    "fit": ("optim.lr", "start.path", "skip.target_len"),
    "positions": ("leak", "sentence_tokens", "samples"),
    "prepare": ("data.window", "data.upsample.share"),
}


def module_of(name):
    place = cli.commands()[name][0]
    package = (ROOT / place.replace(".", "/") / "__main__.py").exists()
    return importlib.import_module(f"{place}.__main__" if package else place)


def main_of(name):
    return module_of(name).read_arguments if name == "fit" else module_of(name).main


def form_of(name):
    """Return the class of an evaluation's options, if it has one."""
    spec = getattr(getattr(main_of(name), "__self__", None), "spec", None) or getattr(module_of(name), "SPEC", None)
    return spec and spec.options


def printed(name, words, capsys):
    status = main_of(name)(words)
    out, err = capsys.readouterr()
    assert err == ""
    return status, out


@pytest.mark.parametrize("name", cli.commands())
def test_help_lists_every_option_as_wide_as_the_terminal(name, capsys, monkeypatch):
    everything = ""
    for width in (120, 60):
        monkeypatch.setenv("COLUMNS", str(width))
        status, short = printed(name, ["--help"], capsys)
        assert (status, f"probe-lab {name} " in short) == (0, True)
        assert name == "papers" or printed(name, [], capsys) == (2, short)
        status, everything = printed(name, ["--help=all"], capsys)
        longest = max(everything.splitlines(), key=len)
        assert status == 0
        assert len(longest) <= width or " " not in longest.strip(" \\"), longest
    options = dataclasses.fields(form_of(name)) if form_of(name) else ()
    names = [*(field.name for field in options), *SOME.get(name, ())]
    assert [name for name in names if f"  --{name}=" not in everything and f"  --{name}." not in everything] == []
    listed = {word.partition("=")[0] for word in re.findall(r"^  (-\S+)", short, re.M)}
    assert listed >= OPTIONS_OF.get(name, {"-o", "--json"})
    assert not any("." in word for word in listed)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_the_console_command_runs_a_module_as_python_does(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["probe-lab", "positions", "string", "--shift=3", "--window=0", "--length=9"])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    signal.signal(signal.SIGTERM, before)
    by_module = capsys.readouterr().out
    assert (ended.value.code, main_of("positions")(sys.argv[1:])) == (0, 0)
    assert capsys.readouterr().out == by_module


UNKNOWN = "zzz: unknown command; use one of: export, fit, "
NEAR = {"positons": "positions", "hepl": "help", "dosc": "docs"}
ANSWERS = {word: f"{word}: unknown command; did you mean {near}?" for word, near in NEAR.items()}
ANSWERS |= {"zzz": UNKNOWN, "help zzz": UNKNOWN}
PAGE = "The lab's commands under one name."
DOCS = "probe-lab docs > docs/settings.md"
HELPS = {  # a command line: its status, and how its output begins
    "--help": (0, PAGE), "": (2, PAGE), "help": (0, PAGE), "docs --help": (0, DOCS), "help docs": (0, DOCS),
    "docs settings.md": (2, DOCS),
}  # fmt: skip


@pytest.mark.parametrize(("words", "start"), ANSWERS.items())
def test_the_console_command_answers_mistakes(capsys, words, start):
    assert cli.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith(start)
    assert not out


def test_another_package_eval_in_front_is_named(tmp_path):
    """As a wheel's user meets it, whose finder of an editable clone does not come to help."""
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "__init__.py").touch()
    code = f"""
        import sys
        sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
        sys.path[:] = [{str(tmp_path)!r}, *sys.path[1:], {str(ROOT)!r}]
        from lab.cli import main
        raise SystemExit(main(["distance", "x"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("eval.distance: another package eval is found first; ")


@pytest.mark.parametrize(("words", "expected"), HELPS.items())
def test_both_words_for_help_print_it(capsys, words, expected):
    status = cli.main(words.split())
    out, err = capsys.readouterr()
    assert (status, out[: len(expected[1])], err) == (*expected, "")


def test_the_first_page_has_four_groups_with_every_command(capsys):
    cli.main(["--help"])
    parts = re.split(r"^([A-Z][a-z ]+):\n", capsys.readouterr().out, flags=re.M)[1:]
    groups = {group: re.findall(r"^  (\w+) ", text, re.M) for group, text in zip(*[iter(parts)] * 2, strict=True)}
    assert [*groups] == ["Train", "Measure", "Compare", "Prepare and convert"]
    assert sorted(itertools.chain(*groups.values())) == sorted(cli.commands())
    assert {"distance", "probe", "recall", "ruler"} <= {*groups["Measure"]}


SPEC = CommandSpec(flags={"--plot": ""}, values={"-o": ""}, lists={"--weights": ""})
READ = {  # words, and the settings of a run
    "run --n=3 --m 4 --k -1": {"n": 3, "m": 4, "k": -1},
    "run --n=1e4 --m=1.5e1 --k=1e-3": {"n": 10_000, "m": 15, "k": 0.001},
    "run --a=b#c --d='e'": {"a": "b#c", "d": "e"},
    "run --fast --n=1 --slow false": {"fast": True, "n": 1, "slow": False},
    "run --text=*.md --haystack ~ --run.name=1e5": {"text": "*.md", "haystack": "~", "run.name": "1e5"},
    "run --text=#h.txt --folder=true --path=1.0": {"text": "#h.txt", "folder": "true", "path": "1.0"},
    "run --text=null --run.name='123'": {"text": None, "run.name": "123"},
    "run --plo=1": {"plo": 1},  # no abbreviation
}
OPTIONS = {  # words: places, -o, --plot, --weights, settings
    "-o out run --plot": (["run"], "out", True, None, {}),
    "run --n 5 -o out --weights 1 -2 --a.b=x": (["run"], "out", False, ["1", "-2"], {"n": 5, "a.b": "x"}),
    "--n=1": ([], None, False, None, {"n": 1}),
}
OPTIONS |= {words: (["run"], None, False, None, settings) for words, settings in READ.items()}


@pytest.mark.parametrize(("words", "expected"), OPTIONS.items(), ids=OPTIONS)
def test_words(words, expected):
    places, options, settings = SPEC.read(words.split())
    assert (places, options.o, options.plot, options.weights, settings) == expected
    assert [*map(type, settings.values())] == [*map(type, expected[-1].values())]


UNREAD = {
    "run -o": "-o: expected one argument",
    "run --plot=yes": "--plot: ",
    "run more": "more: not a setting",
    "run --weights": "--weights: expected at least one argument",
    "run --n=1 --n=2": "--n: is repeated",
    "run '--n=1 #2'": "--n=1 #2: YAML takes what follows # for a comment",
    "run --text=": "--text=: must not be empty",
    "run --run.name --n=1": "--run.name=: must not be empty",
}


@pytest.mark.parametrize(("words", "start"), UNREAD.items())
def test_words_that_cannot_be_read_are_one_line(words, start):
    with refused(start, error=ConfigError):
        SPEC.read(shlex.split(words))


def test_every_path_and_name_is_text():
    classes = [Experiment, *map(form_of, cli.commands())]
    named = {name: str(hint) for each in classes if each for name, _, _, hint in iterate_settings(each)}
    assert len(named) > 150
    for name, hint in named.items():
        is_path = "path_text" in hint and name not in ("plugins", "positions")  # a list, or numbers elsewhere
        assert not is_path or name.rpartition(".")[2] in TEXTS, name
        if name.rpartition(".")[2] in TEXTS:
            assert re.search("path_text|Literal|\\bstr\\b", hint), name


BARRED = f"see its permissions, and `ulimit -n`, and {AGAIN}"
ENDS = [  # what the work returns or raises, the status, and what is printed
    ("done", 0, "done\n", ""),
    (7, 7, "", ""),
    (ConfigError("a=1: no; b", "c=2: no; d"), 2, "", "a=1: no; b\nc=2: no; d\n"),
    *((OSError(number, "reason", "a/b"), 2, "", f"a/b: cannot be used (reason); {BARRED}\n") for number in (13, 24)),
    (KeyboardInterrupt(), 75, "", "stopped; nothing was written\n"),
    (KeyboardInterrupt("half is kept"), 75, "", "half is kept\n"),
]


@pytest.mark.parametrize(("end", "status", "out", "err"), ENDS)
def test_statuses(end, status, out, err, capsys):
    assert command.run(CommandSpec(), Mock(side_effect=[end]), ["x"]) == status
    assert capsys.readouterr() == (out, err)


def test_a_signal_inside_a_text_that_exec_runs_ends_with_the_status_of_every_other_one(tmp_path):
    """As while a dataclass is made; `python -m` of CPython would end by SIGINT, although the error was caught."""
    code = """
        import signal
        from lab.core.command import CommandSpec, run, start
        work = lambda arguments: exec("signal.raise_signal(signal.SIGUSR1)")
        start(lambda words: run(CommandSpec(needs_arguments=False, stopped="stopped"), work, words))
    """
    (tmp_path / "module.py").write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, "-m", "module"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (command.EXIT_STOPPED, "stopped\n")


def test_a_forked_child_that_is_killed_inside_a_bar_does_not_stop_its_parent():
    code = """
        import os, signal
        from lab.core.command import Bar
        lock = Bar.get_lock()
        if (child := os.fork()) == 0:
            with lock:
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        print(sum(Bar([1, 2], desc="parent")))
    """
    printed = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], text=True, timeout=60)
    assert printed.split() == ["3"]
