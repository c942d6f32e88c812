"""Four-needle tests of one model at chosen lengths, for eval.heatmap and eval.methods.

Settings left out are those of the run's own probe section. Tests are the probe's: test k of a length is drawn from
(seed, length, k), and finished ones are shared with eval.probe through its tests-TOKENS-KEY.jsonl.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from eval.engine.rows import Results, Row, shortened
from eval.engine.subject import Subject
from lab.config import Experiment, load_experiment
from lab.counts import SavedCounts
from lab.data.tokenizer import check_ids
from lab.errors import CheckpointError, ConfigError
from lab.probe.config import ProbeConfig, ProtocolName
from lab.probe.curve import LengthResult
from lab.probe.effective_length import NeedleProbe, ResultStore, Worker
from lab.probe.haystacks import load_haystack, read_text
from lab.probe.protocols import shortest_test
from lab.schema import Length, PathText, Positive, Section, Seed, Tests
from lab.train.checkpoints import COUNTS, Checkpoint
from lab.train.choices import computes_in_bf16, method_name
from lab.train.folder import RunFolder

EIGHTHS = 8  # lengths up to the training window of a model without a probe of its own
MOST_TOKENS = 4096  # training window of a model that does not state one
SETTINGS = ("tests", "protocol", "needles", "digits", "required", "answer_budget", "haystack", "seed", "batch")


@dataclass(frozen=True, kw_only=True)
class NeedleOptions(Section):
    """Options of the commands that run four-needle tests."""

    lengths: tuple[Length, ...] | None = None
    """Lengths in tokens, with commas between them, prompt and answer together."""
    tests: Tests | None = None
    """Tests at each length; left out, the run's probe.tests, or 500."""
    protocol: ProtocolName | None = None
    """Tests of the lab (ours) or of the paper's released script (released, released_llama31), as in eval.probe; left
    out, the run's."""
    needles: Annotated[int, Ge(1), Le(16)] | None = None
    """Numbers hidden in each test; left out, as in the run's own probe, or 4."""
    digits: Annotated[int, Ge(2), Le(9)] | None = None
    """Digits of each number; left out, as in the run's own probe, or 6."""
    required: Positive | None = None
    """Numbers that must be found for a test to pass; left out, as in the run's own probe, or 2."""
    answer_budget: Length | None = None
    """Tokens of each length that are left for the answer; left out, as in the run's own probe, in another protocol 64,
    in the released ones 128."""
    haystack: PathText | None = None
    """Text file to hide the numbers in; left out, as in the run's own probe. A Hugging Face folder needs one."""
    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Probability with which limits hold the true share, at least."""
    seed: Seed | None = None
    """Seed of the tests; left out, 0."""
    batch: Tests | None = None
    """Tests that generate side by side; left out, as in the run's own probe, or 64."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""

    def rules(self) -> list[str]:
        """Refuse a length given twice."""
        lengths = self.lengths or ()
        return [
            f"lengths={length}: is given twice; keep one"
            for length in sorted(set(lengths))
            if lengths.count(length) > 1
        ]


class FinishedTests(ResultStore):
    """The finished needle tests of one key, in tests-TOKENS-KEY.jsonl; the file's first line holds the key.

    The key holds all that decides a test's outcome: checkpoint, position methods, protocol, text, seed. How many tests
    there are, at which lengths, and what passes is not in it: a probe that asks for more reuses the tests of one that
    asked for less. `by` is the field of a test's length or distance. `report` is called with the number of tests just
    added.
    """

    def __init__(self, folder: Path, consumed_tokens: int, key: Mapping[str, Any], by: str = "length") -> None:
        self.by = by
        head = {"key": dict(key)}
        self.path = folder / f"tests-{consumed_tokens:015d}-{shortened(json.dumps(key, sort_keys=True))}.jsonl"
        self.report: Any = lambda tests: None
        self.file = Results(self.path, (by, "test"))
        if not self.file.known:
            self.file.append([head])
        first, *rows = self.file
        if first != head:
            raise CheckpointError(f"{self.path}: its first line names other settings; move the file away")
        self.rows: dict[tuple[int, int], Row] = {(row[by], row["test"]): row for row in rows}

    def known(self, length: int) -> Mapping[int, Row]:
        """Return the finished tests of a length by number."""
        return {test: row for (other, test), row in self.rows.items() if other == length}

    def keep(self, length: int, rows: Mapping[int, Row]) -> None:
        """Add finished tests; they are on the disk when this returns."""
        named = {test: {self.by: length, "test": test, **row} for test, row in rows.items()}
        self.file.append(named.values())
        self.rows |= {(length, test): row for test, row in named.items()}
        self.report(len(named))


@contextmanager
def stoppable(finished: FinishedTests) -> Iterator[None]:
    """Say after Ctrl-C where the finished tests are.

    Raises: KeyboardInterrupt, with that line.
    """
    try:
        yield
    except KeyboardInterrupt as signal_:
        kept = f"{len(finished.rows):,} finished tests are in {finished.path}"
        raise KeyboardInterrupt(f"stopped; {kept}; the same command continues") from signal_


def make_probe(subject: Subject, options: NeedleOptions) -> NeedleProbe:
    """Build the tests of a model; the probe's own lengths are not used.

    Raises: LabError.
    """
    experiment = subject.model.experiment
    config = probe_config(experiment, options)
    own = None if experiment is None else experiment.probe.haystack
    haystack, source = haystack_of(subject, options.haystack, own)
    shortest = shortest_test(config, subject.tokenizer)
    config = replace(config, max_length=max(shortest, *(options.lengths or (1,))))
    try:
        probe = needle_probe(subject, config, haystack, source)
    except ConfigError as error:
        raise ConfigError(*(fault.replace("probe.", "--", 1) for fault in error.faults)) from error
    check_lengths(options.lengths or (), shortest)
    return probe


def needle_probe(subject: Subject, config: ProbeConfig, haystack: str, source: str | None) -> NeedleProbe:
    """Build the tests of a model from settings that are complete; `source` names the haystack's file if it has one.

    Raises: ConfigError; DataError for another model's tokenizer.
    """
    window = subject.model.train_len or config.max_length or MOST_TOKENS
    probe = NeedleProbe(
        config,
        subject.tokenizer,
        haystack,
        window=window,
        stop_id=subject.stop_id,
        device=subject.device,
        source=source,
    )
    check_ids(probe.case(probe.shortest(), 0).prompt_ids, subject.vocab_size)
    return probe


def counts_of(subject: Subject) -> SavedCounts | None:
    """Read the position frequency at a run's checkpoint; None for a Hugging Face folder."""
    if subject.model.folder is None or subject.checkpoint is None:
        return None
    path = subject.model.folder / "checkpoints" / subject.checkpoint / COUNTS
    return SavedCounts.read(path) if path.exists() else None


def haystack_of(subject: Subject, path: str | None, own: str | None) -> tuple[str, str | None]:
    """Read the text to hide numbers in: the file `path`, or a run's `own`, or its corpus; and name a file's setting.

    A run's own is what its folder keeps of it, if it keeps one.

    Raises: ConfigError for a Hugging Face folder without a file; DataError for a file that cannot be read.
    """
    experiment = subject.model.experiment
    if path is not None:
        return read_text(Path(path), "--haystack"), f"--haystack={path}"
    if experiment is None:
        raise ConfigError("--haystack: must be set, a Hugging Face folder has no corpus of its own; give a text file")
    source = None if own is None else f"probe.haystack={own}"
    run = subject.model.folder if own == experiment.probe.haystack else None
    return load_haystack(own, experiment.data, subject.tokenizer, run), source


def probe_config(experiment: Experiment | None, options: NeedleOptions) -> ProbeConfig:
    """Replace the run's own probe settings by the options; another protocol brings its own sizes.

    Raises: ConfigError, which names options as they are written.
    """
    given = {name: getattr(options, name) for name in SETTINGS if getattr(options, name) is not None}
    values = given if experiment is None else experiment.probed(given)
    try:
        return ProbeConfig(**{**values, "step": 1, "max_length": None, "confidence": options.confidence})
    except ConfigError as error:
        raise ConfigError(*(f"--{fault}" for fault in error.faults)) from error


def check_lengths(lengths: Sequence[int], shortest: int) -> None:
    """Refuse lengths without room for a test.

    Raises: ConfigError.
    """
    short = [length for length in lengths if length < shortest]
    if short:
        rule = f"too short for the needle test, whose fixed parts and answer take {shortest} tokens"
        raise ConfigError(*(f"--lengths={length}: {rule}; use {shortest} or more" for length in short))


def own_lengths(subject: Subject, probe: NeedleProbe) -> list[int]:
    """List the lengths that the run probes, up to its training window where it names no last one.

    Eighths of the training window for a Hugging Face folder. The first with room for a test where there is none.
    """
    experiment, shortest = subject.model.experiment, probe.shortest()
    longest = subject.model.train_len or shortest
    step = max(1, longest // EIGHTHS)
    if experiment is not None:
        step, longest = experiment.probe.step, experiment.probe.max_length or longest
    first = -(-shortest // step) * step
    return list(range(first, longest + 1, step)) or [first]


def finished_tests(subject: Subject, probe: NeedleProbe, folder: Path) -> FinishedTests:
    """Open the file of the model's finished tests.

    Raises: LabError.
    """
    model, weights = subject.model, subject.weights
    if model.folder is not None and subject.checkpoint is not None and model.consumed_tokens is not None:
        weights = Checkpoint(model.folder / "checkpoints" / subject.checkpoint, model.consumed_tokens).digest
    key = {
        "weights": weights,
        "method": model.method,
        "precision": "bf16" if subject.precision == "bfloat16" else "fp32",
        "device": subject.device.type,
        "protocol": probe.config.protocol,
        "needles": probe.needles,
        "digits": probe.digits,
        "answer_budget": probe.config.budget,
        "haystack": hashlib.sha256(probe.haystack.encode()).hexdigest(),
        "shortest_prompt": probe.case(probe.shortest(), 0).prompt_hash,  # names the tokenizer and how cases are drawn
        "seed": probe.seed,
    }
    return FinishedTests(folder, model.consumed_tokens or 0, key)


def reuse_recorded(subject: Subject, probe: NeedleProbe, finished: FinishedTests, lengths: Sequence[int]) -> int:
    """Reuse the tests that training recorded in cases/ and this command would repeat; return how many.

    These are tests with the same prompt and answer budget, of the same weights, position methods, precision and kind
    of device.
    """
    experiment, folder = subject.model.experiment, subject.model.folder
    if experiment is None or folder is None or not probed_as_in_training(subject, probe):
        return 0
    rows = {}
    for row in RunFolder(folder).read(f"cases/tokens-{subject.model.consumed_tokens:015d}.jsonl"):
        if "length" not in row:  # a one-number test
            continue
        place = (row["length"], row["test"])
        wanted = row["length"] in lengths and row["test"] < probe.config.tests
        if wanted and place not in finished.rows and probe.case(*place).prompt_hash == row["prompt_hash"]:
            rows[place] = row
    finished.rows |= rows
    return len(rows)


def probed_as_in_training(subject: Subject, probe: NeedleProbe) -> bool:
    """Return whether training's probe computed as this command does."""
    assert subject.model.folder is not None, "asked of runs only"
    trained = load_experiment(subject.model.folder / "config.yaml")
    gpus = gpus_of(subject.model.folder)
    device = "cuda" if gpus and trained.train.accelerator != "cpu" else "cpu"
    own = trained.probe
    return (
        gpus is not None
        and device == subject.device.type
        and computes_in_bf16(trained, subject.device) == (subject.precision == "bfloat16")
        and method_name(trained) == subject.model.method
        and (own.protocol, own.budget) == (probe.config.protocol, probe.config.budget)
    )


def gpus_of(folder: Path) -> list[str] | None:
    """Read which GPUs a run's machine had; None if that was not recorded."""
    try:
        gpus: list[str] = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["hardware"]["gpus"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return gpus


def run_length(subject: Subject, probe: NeedleProbe, length: int, finished: FinishedTests) -> LengthResult:
    """Run the tests of a length that are not finished yet, and return the result of all."""
    return probe.run_length(subject.generate, length, Worker(), finished)
