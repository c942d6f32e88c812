"""Compare position methods on one model and the same tests, at the training length (arXiv:2410.18745, Table 1).

    python -m eval.methods MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. Every method runs the four-needle tests of eval.probe, the same ones, with the settings that the paper
compares at, derived from the training length: methods that extrapolate are set to two thirds of it
(eval/engine/methods.py has them all, each with its source; every row names the values):

    python -m eval.methods runs/tiny_2k --plot
    python -m eval.methods runs/cpu_demo --tests=200 --lengths=192,288,352 --plot
    python -m eval.methods models/Llama-3.1-8B --haystack=essays.txt --methods=rope,dca,string
    python -m eval.methods runs/tiny_2k --methods=rope,string,string:released_scaling=true,string:shift=1024,window=64

Parameters after a colon replace derived ones, in a row of that name. released_scaling is the factor on STRING's logits
that the authors' code has and the paper does not mention.

A method's difference to rope is judged by McNemar's exact test on the same tests, corrected for the number of methods
(Holm); eval/engine/statistics.py has the equations. An asterisk marks a difference that is significant at 0.05. A test
passes as in the probe, with 2 of 4 numbers; --required=4 asks for all of them, of the same tests. `found` is the
share of all numbers.

Prints a table for each length and adds a line for each method and length to methods.jsonl in eval/ of the run folder
(runs/methods-NAME for a Hugging Face folder) or FOLDER. Every finished test is kept in tests-TOKENS-KEY.jsonl at once,
which eval.probe shares: after Ctrl-C (exit status 75) or a crash the same command continues. Seconds follow from the
tests that were run for this command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.engine.command import Form, Request, run
from eval.engine.methods import METHODS, Setting, overridden, setting, split_words
from eval.engine.needle_tests import NeedleOptions, finished_tests, make_probe, run_length
from eval.engine.rows import Found, Results
from eval.engine.statistics import pair, share
from eval.engine.subject import SUBJECT, Subject, note_idle, open_subject, result_folder
from eval.methods.picture import draw_methods
from eval.methods.table import table
from lab.bars import Bar
from lab.command import start
from lab.errors import ConfigError
from lab.positions import Frequencies
from lab.probe.curve import LengthResult
from lab.probe.effective_length import NeedleProbe, Row
from lab.probe.records import tests_of
from lab.schema import Length, look_up
from lab.settings import parse_method

KIND = "methods"
BASE = "rope"
ALIKE = ("protocol", "needles", "digits", "required", "answer_budget", "haystack", "n", "seed", "confidence")
NAMED_BY = (*SUBJECT, *ALIKE, "length", "compared_as", "train_len")


@dataclass(frozen=True, kw_only=True)
class MethodsOptions(NeedleOptions):
    """Options of this command. Left out, the length is the training length."""

    methods: str = ",".join(METHODS)
    """Methods, NAME or NAME:parameter=value,..., with commas between them; rope is what the others are compared to."""
    train_len: Length | None = None
    """Training length in tokens that settings are derived from; left out, the model's training window."""

    def rules(self) -> list[str]:
        """Refuse methods that are not compared."""
        faults, names = super().rules(), self.chosen
        known = dict.fromkeys(METHODS)
        for name in names:
            try:
                look_up(known, name.partition(":")[0], "methods")
            except ConfigError as error:
                faults += error.faults
        faults += [f"methods={name}: is given twice; keep one" for name in sorted(set(names)) if names.count(name) > 1]
        return faults

    @property
    def chosen(self) -> list[str]:
        """The requested methods, rope first."""
        return sorted(split_words(self.methods), key=lambda name: name != BASE)


def measure(request: Request) -> Found:
    """Run the unfinished tests, write the results, and return the tables.

    Raises: LabError, KeyboardInterrupt.
    """
    options: MethodsOptions = request.options
    subject = open_subject(request)
    own = subject.model.decoder.frequencies
    probe = make_probe(subject, options)
    train_len = options.train_len or subject.model.train_len
    if train_len is None:
        raise ConfigError("--train_len: must be set, the model does not state its training length")
    lengths = choose_lengths(probe, options, train_len)
    probe.check_haystack(lengths[-1])
    settings = {n: [checked(named(word, train_len, n), n, own) for word in options.chosen] for n in lengths}
    cells = Results(result_folder(KIND, request, subject) / f"{KIND}.jsonl", NAMED_BY)
    rows = measure_all(subject, probe, settings, own, cells, options.confidence)
    title = f"{subject.model.name}, trained at {train_len:,} tokens; {probe.config.tests} tests at each length"
    lines = [title, *(table(rows[length], length, options.confidence) for length in lengths)]
    picture = None
    if request.plots:
        names = {**rows[lengths[0]][0], "length": lengths, "compared_as": options.methods}
        picture = cells.path.with_name(f"{KIND}-{cells.digest(names)}.png")
        draw_methods(rows, title, picture)
    return Found("\n".join([*lines, ""]), [row for each in rows.values() for row in each], cells.path, picture)


def choose_lengths(probe: NeedleProbe, options: MethodsOptions, train_len: int) -> list[int]:
    """Choose the lengths, rising.

    Raises: ConfigError where the training length has no room for a test.
    """
    if options.lengths is not None:
        return sorted(options.lengths)
    if train_len < probe.shortest():
        rule = f"must be set, a test takes {probe.shortest()} tokens and the training length is {train_len}"
        raise ConfigError(f"--lengths: {rule}; name lengths with room")
    return [train_len]


def named(word: str, train_len: int, length: int) -> Setting:
    """Derive the settings of a method, and replace those that the word gives.

    Raises: ConfigError for a parameter that is not name=value.
    """
    values = parse_method(word, "--methods")
    derived = setting(values.pop("method"), train_len, length)
    return overridden(derived, word, values) if values else derived


def checked(setting: Setting, length: int, own: Frequencies) -> Setting:
    """Refuse a method that cannot be built; print a note on one that changes nothing at the length.

    Raises: ConfigError.
    """
    try:
        _, distance = setting.place(own)
    except ConfigError as error:
        raise ConfigError(*(f"--methods={setting.method}: {fault}" for fault in error.faults)) from error
    note_idle(f"--methods={setting.method}", distance, length)
    return setting


def measure_all(
    subject: Subject,
    probe: NeedleProbe,
    settings: Mapping[int, Sequence[Setting]],
    own: Frequencies,
    cells: Results,
    confidence: float,
) -> dict[int, list[Row]]:
    """Run every method at every length, and test the differences of a length once all are known."""
    out: dict[int, list[Row]] = {}
    total = sum(map(len, settings.values())) * probe.config.tests
    with Bar(total=total, desc=KIND, unit="test") as bar:
        for length, chosen in settings.items():
            base: list[bool] | None = None
            out[length] = []
            for item in chosen:
                bar.name(f"{item.method} at {length:,} tokens")
                placed = with_methods(subject, item, own)
                result = run_tests(placed, probe, length, cells, bar)
                passed = [row["found"] >= probe.config.required for row in result.cases]
                base = passed if item.method == BASE else base
                about = {**describe(placed, probe, item), "length": length, "confidence": confidence}
                found = sum(row["found"] for row in result.cases) / (len(passed) * probe.needles)
                limits = share(sum(passed), len(passed), confidence)
                outcome = {"passed": sum(passed), **limits, "numbers_found": found}
                versus = pair(base, passed).row if base is not None and item.method != BASE else None
                row = {**about, **outcome, "versus_rope": versus, "seconds": result.seconds}
                out[length].append(keep(cells, row))
    return out


def with_methods(subject: Subject, setting: Setting, own: Frequencies) -> Subject:
    """Install a setting's methods in the model; its weights do not change."""
    subject.model.decoder.frequencies, subject.model.decoder.distance = setting.place(own)
    return subject


def run_tests(subject: Subject, probe: NeedleProbe, length: int, cells: Results, bar: Any) -> LengthResult:
    """Run the tests of a length that are not finished."""
    finished = finished_tests(subject, probe, cells.path.parent)
    bar.known(len([test for test in finished.known(length) if test < probe.config.tests]))
    finished.report = bar.update
    return run_length(subject, probe, length, finished)


def keep(cells: Results, row: Row) -> Row:
    """Add a row unless an equal one exists; seconds and comparison that this call lacks are taken from that one."""
    before = cells.find(row)
    if before is None:
        return cells.add(row)
    merged = {**row, **{name: row[name] or before[name] for name in ("versus_rope", "seconds")}}
    new = [name for name, value in merged.items() if before.get(name) != value and name not in ("commit", "hardware")]
    return cells.add(merged) if new else before


def describe(subject: Subject, probe: NeedleProbe, setting: Setting) -> dict[str, Any]:
    """Describe what a row measures, on what, and with what."""
    return {
        **subject.row,
        "metric": "needles_by_method",
        "compared_as": setting.method,
        "train_len": setting.train_len,
        "assumed_len": setting.assumed_len,
        "parameters": setting.parameters,
        **tests_of(probe),
        "n": probe.config.tests,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    own = "this command sets the methods itself, those of --methods"
    form = Form(options=MethodsOptions, text="haystack", refused={"--distance": own, "--frequency": own})
    return run("eval.methods", __doc__, form, measure, arguments)


if __name__ == "__main__":
    start(main)
