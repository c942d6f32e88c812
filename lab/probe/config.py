"""The settings of a probe: the section of a run's config, and those of its tests; no torch."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from lab.core.schema import Length, NonNegative, PathText, Positive, Section, Seed, Share, Tests

ProtocolName = Literal["ours", "released", "released_llama31"]
RELEASED_BUDGET = 128  # tokens of an answer in the released script


class ProbeSection(Section):
    """The four-needle probe of effective context length (arXiv:2410.18745, section 3)."""

    protocol: ProtocolName = "ours"
    """Tests of the lab (ours), or of the paper's released script, with the question for other models (released) or for
    Llama-3.1 (released_llama31)."""
    every_tokens: Positive | None = None
    """Consumed tokens between probes. Default: the run probes only at its end."""
    tests: Tests = 500
    """Tests at each length."""
    step: Length = 128
    """Step of the lengths, in tokens; the first is the first multiple with room for a test. Default: a sixteenth of the
    window, 128 at most."""
    max_length: Length | None = None
    """Longest length; every length up to it is probed. Default: a probe stops at the first length that fails, at four
    windows, or where the first test needs more, after this one."""
    required: Positive = 2
    """Numbers that must be found for a test to pass."""
    threshold: Share = 0.8
    """Share of tests that must pass for a length to pass."""
    answer_budget: Length | None = None
    """Tokens of each length that are left for the answer. Default: 64, or more if the numbers take more in the
    tokenizer; in the released protocols 128."""
    batch: Annotated[int, Ge(1), Le(2**16)] | None = None
    """Most tests that generate together on one device. Default: 64 on a CPU, and on a GPU up to 1,024 whose keys and
    values fit into half of its free memory."""
    haystack: PathText | None = None
    """Text to hide the numbers in: a file (.txt, .md, .py, .json with `text`, .jsonl), a folder or a pattern.
    Default: fresh text of the corpus."""
    distance_tests: Annotated[int, Ge(0), Le(10**6)] = 100
    """One-number tests at each distance (lab/probe/effective_distance.py); 0 for none. A window without room for a test
    has none."""
    distance_points: Annotated[int, Ge(2), Le(1000)] | None = None
    """Number of distances, equally spaced from a quarter of the window to the largest that fits. Default: 14."""
    loss_tokens: NonNegative = 65_536
    """Held-out tokens whose loss is measured with every probe, and with it recall; 0 for none."""

    def rules(self) -> Iterator[str]:
        """Reject settings without effect, and settings that leave no length."""
        if self.max_length is not None and self.max_length < self.step:
            yield self.format_error("max_length", f"must be >= step={self.step}; lower step or raise max_length")
        if self.distance_points is not None and not self.distance_tests:
            yield self.format_error("distance_points", "would be ignored; omit it, or raise distance_tests")
        for name, size in {"answer_budget": RELEASED_BUDGET, "needles": 4, "digits": 6}.items():
            if self.protocol != "ours" and getattr(self, name, None) not in (None, size):
                yield self.format_error(
                    name, f"must be {size} in the {self.protocol} protocol; omit it or use protocol: ours"
                )

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject more numbers than a test has, and a corpus without held-out text that the probe needs."""
        needles = run.probe_settings({}).get("needles", 4)
        if self.required > needles:
            yield run.format_error("probe.required", f"must be <= {needles}, the numbers of a test; lower it")
        if run.data.held_out_frac == 0 and self.needs_held_out(run.data):
            yield run.format_error(
                "data.held_out_frac",
                "the probe needs held-out text; raise it, or set probe.loss_tokens=0 and probe.haystack",
            )

    def needs_held_out(self, data: Any) -> bool:
        """Return whether a probe reads held-out text of a corpus, given by the section data of a run."""
        return bool(self.loss_tokens) or (self.haystack is None and data.parts[0].corpus.name != "synthetic")

    @property
    def budget(self) -> int:
        return self.answer_budget or (64 if self.protocol == "ours" else RELEASED_BUDGET)

    def rows(self, device: str) -> int:
        return self.batch or (64 if device == "cpu" else 1024)

    def lengths(self, shortest: int, window: int) -> list[int]:
        """List the lengths to probe: multiples of `step` from the first with room for `shortest` tokens on."""
        first = -(-shortest // self.step) * self.step
        # without max_length at least one
        longest = max(0 if self.max_length else first, self.longest(window))
        return list(range(first, longest + 1, self.step))

    def longest(self, window: int) -> int:
        return self.max_length or 4 * window


class ProbeConfig(ProbeSection):
    """All settings of a probe; those that a run's section lacks are set by the commands that probe a checkpoint."""

    seed: Seed = 0
    """Seed of the tests, independent of run.seed, so that results of runs with different seeds are paired."""
    needles: Annotated[int, Ge(1), Le(16)] = 4
    """Numbers hidden in each test. Default: the number that the synthetic corpus states, else 4."""
    digits: Annotated[int, Ge(2), Le(9)] = 6
    """Digits of each number. Default: those of the synthetic corpus, else 6."""
    distances: tuple[Length, ...] | None = None
    """Distances to test, in tokens, rising. Default: `distance_points` of them."""

    def rules(self) -> Iterator[str]:
        """Reject tests that cannot be passed and settings without effect."""
        yield from super().rules()
        if self.required > self.needles:
            yield self.format_error("required", f"must be <= needles={self.needles}; lower required")
        if self.distances is not None and self.distance_points is not None:
            yield self.format_error("distance_points", "would be ignored; omit it or distances")
        if list(self.distances or ()) != sorted(set(self.distances or ())):
            yield self.format_error("distances", "must rise; sort them and keep each once")
