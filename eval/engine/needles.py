"""The options of needle tests, and how the four-needle and the one-number tests of a model are built.

Test k of a length is drawn from (seed, length, k). Results are shown by length, by depth, or by method.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Le

from eval.engine import answers, run
from eval.engine.methods import report_as_options
from eval.engine.subject import Subject
from eval.engine.texts import read_text
from lab.core import schema
from lab.core.command import Bar
from lab.core.errors import ConfigError
from lab.core.types import Row
from lab.data.tokenizer import check_ids
from lab.probe import effective_distance, effective_length
from lab.probe.config import ProbeConfig, ProtocolName
from lab.probe.probe import Probe
from lab.probe.reach import shown_length

AnyProbe = TypeVar("AnyProbe", bound=Probe[Any])
X_TITLE = "length (tokens)"


class NeedleOptions(schema.Section):
    """Options of all needle tests; defaults are those of the run's own probe."""

    digits: Annotated[int, Ge(2), Le(9)] | None = None
    """Digits of each number; default: the run's, or 6."""
    haystack: schema.PathText | None = None
    """Text file to hide the numbers in; default: as in the run's own probe, or text that the lab generates."""
    seed: schema.Seed | None = None
    """Seed of the tests; default: the run's probe.seed, or 0."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""


class ProbeOptions(NeedleOptions):
    """Options of this command; defaults are those of the run's own probe."""

    by: Literal["length", "depth", "method"] | None = None
    """What shares are shown by; default: method where --distance names several, else length."""
    lengths: tuple[schema.Length, ...] | None = None
    """Lengths in tokens by depth or method, prompt and answer together; default: the run's own up to the window (for a
    Hugging Face folder eighths of the window) by depth, and the training length by method."""
    depths: Annotated[int, Ge(1), Le(200)] | None = None
    """Depths, equal parts of the text's first 99%, a whole number of them to a needle; default: three to a needle."""
    train_len: schema.Length | None = None
    """Training length in tokens that methods' settings are derived from; default: the model's training window."""
    tests: schema.Tests | None = None
    """Tests at each length; default: the run's, or 500."""
    step: schema.Length | None = None
    """Step of the lengths, in tokens; the first is the first multiple with room for a test."""
    max_length: schema.Length | None = None
    """Longest length; every length up to it is probed. By default, a probe stops at the first length that fails."""
    protocol: ProtocolName | None = None
    """Tests of the lab (ours), or of the paper's released script, with the question for other models (released) or for
    Llama-3.1 (released_llama31)."""
    needles: Annotated[int, Ge(1), Le(16)] | None = None
    """Numbers hidden in each test; default: the run's, or 4."""
    required: schema.Positive | None = None
    """Numbers that must be found for a test to pass; default: the run's, or 2."""
    threshold: schema.Share | None = None
    """Share of tests that must pass for a length to pass; default: the run's, or 0.8."""
    answer_budget: schema.Length | None = None
    """Tokens of each length that are left for the answer; default: the run's, in another protocol 64, in the released
    ones 128."""
    batch: Annotated[int, Ge(1), Le(2**16)] | None = None
    """Most tests that generate together; default: the run's, or 64 on a CPU, more on a GPU."""


class OneNumberOptions(NeedleOptions):
    """Options of one-number tests; defaults are those of the run's own probe."""

    distances: tuple[schema.Length, ...] | None = None
    """Distances in tokens, rising, with commas between them; default: `points` of them."""
    points: Annotated[int, Ge(2)] | None = None
    """Number of distances, equally spaced from a quarter of the window to the largest that fits; default: as in the
    run's own probe, or 14."""
    tests: schema.Tests | None = None
    """Tests at each distance; default: as in the run's own probe, or 100."""


def one_number_probe(subject: Subject, options: OneNumberOptions, window: int) -> effective_distance.DistanceProbe:
    """Build the one-number tests of a model, with the defaults of the run's own probe.

    Raises: LabError.
    """
    settings = read_settings(subject, options, points="distance_points", tests="distance_tests")
    settings["distance_tests"] = settings.get("distance_tests") or 100
    # A probe takes a number of distances or the distances themselves, and rejects both.
    if options.distances is not None:  # in place of the run's own
        settings["distance_points"] = options.points
    with report_as_options():
        config = ProbeConfig(**settings)
    probe = build_probe(effective_distance.DistanceProbe, subject, config, options, window)
    check_ids(probe.case(probe.distances[0], 0).prompt_ids, subject.vocab_size)
    return probe


def read_settings(subject: Subject, options: NeedleOptions, **renamed: str) -> Row:
    """Return the settings of a run's own probe with the options in their place, some of them `renamed`.

    Another protocol brings its own sizes.
    """
    changes = {}
    for name, value in asdict(options).items():
        setting = renamed.get(name, name)
        if value is not None and setting in ProbeConfig.__dataclass_fields__:
            changes[setting] = value
    experiment = subject.model.experiment
    return changes if experiment is None else experiment.probe_settings(changes)


def build_probe(
    kind: Callable[..., AnyProbe], subject: Subject, config: ProbeConfig, options: NeedleOptions, window: int
) -> AnyProbe:
    """Build the tests of a model; their haystack is that of the options, or the run's own.

    Raises: LabError, whose lines name settings as options.
    """
    experiment = subject.model.experiment
    own = None if experiment is None else experiment.probe_section.haystack
    text, source = read_text(subject, options.haystack, own, "--haystack")
    given = (config, subject.tokenizer, text)
    with report_as_options():
        return kind(*given, window=window, stop_id=subject.stop_id, device=subject.device, source=source)


class NeedleMeasure(run.Measure):
    """Needle tests of one model; subclasses choose how their results are shown."""

    kind = "probe"
    options: ProbeOptions
    several = True
    named_by = (
        *("metric", "length", "n", "tests", "required", "threshold", "first_length", "last_length"),
        *("from_depth", "third", "depths", "compared_as", "train_len", "assumed_len"),
    )

    def prepare(self) -> None:
        """Replace the run's own settings by the options, choose the lengths and build the tests."""
        subject, options = self.subject, self.options
        window = subject.model.train_len
        # A model without a probe of its own is tested at eighths of its window.
        settings = {"step": max(1, window // 8), **read_settings(subject, options)}
        with report_as_options():
            config = effective_length.set_answer_budget(ProbeConfig(**settings), subject.tokenizer)
        shortest = effective_length.select_protocol(config).shortest(config, subject.tokenizer)
        chosen = sorted({*self.choose_lengths(config, shortest)})
        if chosen and chosen[0] < shortest:
            rule = f"too short for the needle test: its fixed parts and answer take {shortest} tokens"
            raise ConfigError(f"--lengths={chosen[0]}: {rule}; use {shortest} or more")
        # With a step of 1 every requested length is a multiple of the step, as the probe requires.
        self.config = replace(config, step=1, max_length=chosen[-1]) if chosen else config
        self.probe = build_probe(effective_length.NeedleProbe, subject, self.config, options, window)
        if options.max_length is None:
            # A model with a table of positions cannot read longer prompts.
            self.probe.lengths = [length for length in self.probe.lengths if subject.cap_length(length) == length]
        self.lengths = chosen or self.probe.lengths
        if not self.lengths:
            rule = f"has {subject.most_tokens} positions, and the shortest test takes {shortest}"
            raise ConfigError(f"model={subject.model.name}: {rule}; lower --needles, or use another model")
        # A tokenizer of another model would otherwise fail in the middle of the tests.
        check_ids(self.probe.case(shortest, 0).prompt_ids, subject.vocab_size)
        self.probe.check_haystack(self.lengths[-1])

    def choose_lengths(self, config: ProbeConfig, shortest: int) -> Sequence[int]:
        """Choose the lengths; none are those of the config, up to the one at which a probe stops."""
        return ()

    @property
    def origin(self) -> Row:
        return {**self.subject.row, **self.probe.describe_tests()}

    def open_needles(self) -> answers.FinishedTests:
        """Open the file of the tests, which does not depend on the numbers required to pass."""
        tests = self.probe.describe_tests()
        del tests["required"]
        return self.open_tests(tests, self.probe.case(self.probe.shortest, 0), self.config.tests)

    def counting(self, methods: int = 1) -> Bar:
        """Open the bar of all tests."""
        self.bar = Bar(total=methods * len(self.lengths) * self.config.tests, desc=self.kind, unit="test")
        return self.bar

    def title(self) -> str:
        return f"{super().title()}; protocol {self.config.protocol}, {self.config.tests} tests a length"


def format_effective_length(values: Row) -> str:
    """Write an effective length, by steps and smooth, each with its limits.

    Example:
        >>> smooth = {"smooth": 290.4, "smooth_low": 0.0, "smooth_high": None, "first_length": 128}
        >>> format_effective_length({"threshold": 0.8, "effective_length": 288, "low": 0, "high": None, **smooth})
        'effective length 288 at threshold 0.8, within <128 or more; smooth 290.4, within <128 or more'
    """
    first = values["first_length"]

    def format_limits(prefix: str, form: str) -> str:
        low, high = (values[f"{prefix}{end}"] for end in ("low", "high"))
        end = "or more" if high is None else f"to {shown_length(high, first, form)}"
        return f"within {shown_length(low, first, form)} {end}"

    steps = shown_length(values["effective_length"], first)
    smooth = shown_length(values["smooth"], first, ",.1f")
    by_steps = f"effective length {steps} at threshold {values['threshold']:g}, {format_limits('', ',')}"
    return f"{by_steps}; smooth {smooth}, {format_limits('smooth_', ',.1f')}"
