"""The probe section of a run's config; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from lab.schema import Length, NonNegative, PathText, Positive, PositiveFloat, Section, Seed, Share, Tests

ERROR = 0.005  # at each length; with 63 lengths the effective length is unchanged in 99% of models (LOG.md)
ROUNDS = 20  # of a sequential probe at each length
PAPER_SIZES = {"needles": 4, "digits": 6}  # arXiv:2410.18745, section 3
SIZES = {**PAPER_SIZES, "answer_budget": 64}  # of tests whose config and corpus state none
OFFICIAL_SIZES: Mapping[str, Mapping[str, int]] = {
    "released": {**PAPER_SIZES, "answer_budget": 128},
    "released_llama31": {**PAPER_SIZES, "answer_budget": 128},
}
ProtocolName = Literal["ours", "released", "released_llama31"]
BATCHES = {"cpu": 64, "cuda": 1024}  # tests that generate together without batch, by the kind of device
DISTANCES = 14  # of the one-number test without distance_points
LIMIT_WINDOWS = 4  # longest probe without max_length


def settings_of_run(settings: Mapping[str, Any], own: str) -> dict[str, Any]:
    """Name settings of the probe as those of a run; a protocol that is not the run's `own` comes with its sizes.

    Example:
        >>> settings_of_run({"protocol": "released", "digits": 6}, own="ours")
        {'probe.needles': None, 'probe.digits': 6, 'probe.answer_budget': None, 'probe.protocol': 'released'}
    """
    overrides = {key if "position." in key else f"probe.{key}": value for key, value in settings.items()}
    sizes = SIZES if settings.get("protocol", own) != own else ()
    return {f"probe.{size}": None for size in sizes} | overrides


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Section):
    """The four-needle probe of effective context length (arXiv:2410.18745, section 3)."""

    protocol: ProtocolName = "ours"
    """Tests of the lab (ours), or of the paper's released script, with the question for other models (released) or for
    Llama-3.1 (released_llama31)."""
    every_tokens: Positive | None = None
    """Consumed tokens between probes; left out, the run probes at its end only."""
    tests: Tests = 500
    """Tests at each length."""
    seed: Seed = 0
    """Seed of the tests, whatever run.seed, so that results of runs with different seeds are paired."""
    step: Length = 128
    """Step of the lengths, in tokens; the first is the first multiple with room for a test."""
    max_length: Length | None = None
    """Longest length; every length up to it is probed. Left out, a probe stops at the first length that fails."""
    needles: Annotated[int, Ge(1), Le(16)] | None = None
    """Numbers hidden in each test; left out, as many as the synthetic corpus states, else 4."""
    digits: Annotated[int, Ge(2), Le(9)] | None = None
    """Digits of each number; left out, as many as the synthetic corpus has, else 6."""
    required: Positive = 2
    """Numbers that must be found for a test to pass."""
    threshold: Share = 0.8
    """Share of tests that must pass for a length to pass."""
    thresholds: tuple[Share, ...] | None = None
    """Further thresholds of effective length; a probe without max_length continues until all have failed."""
    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Minimum probability that the limits hold the true value."""
    sequential: bool = False
    """Whether a length stops as soon as its verdict is certain, or almost certain."""
    error: Annotated[float, Ge(0), Lt(0.5)] | None = None
    """Maximum probability that a sequential length gets another verdict than with all tests; left out, 0.005."""
    round: Positive | None = None
    """Tests between two checks whether a sequential length may stop; left out, a twentieth of the tests."""
    answer_budget: Length | None = None
    """Tokens of each length that are left for the answer; left out, 64, in the released protocols 128."""
    batch: Annotated[int, Ge(1), Le(2**16)] | None = None
    """Most tests that generate together on one device; left out, 64 on a CPU, and on a GPU 1,024, as far as half of its
    free memory holds their keys and values."""
    haystack: PathText | None = None
    """Text file (.txt, .json with `text`, .jsonl) to hide the numbers in; left out, fresh text of the corpus."""
    distance_tests: Annotated[int, Ge(0), Le(10**6)] = 100
    """One-number tests at each distance (lab/probe/effective_distance.py); 0 for none."""
    distance_points: Annotated[int, Ge(2), Le(1000)] | None = None
    """Number of distances, equally spaced from a quarter of the window to the largest that fits; left out, 14."""
    distances: tuple[Length, ...] | None = None
    """Distances to test, in tokens, rising; left out, `distance_points` of them."""
    loss_tokens: NonNegative = 65_536
    """Held-out tokens whose loss is measured with every probe; 0 for none."""
    process: Literal["training", "separate"] = "training"
    """Where the run is probed: by the training itself, which waits, or by a process of its own on the saved checkpoint,
    on a GPU that the run does not use, if this machine has one, or on the CPU; only the end of the run waits for it."""
    max_seconds: PositiveFloat | None = None
    """Longest time of a probe of the run, which then ends at the next batch of tests, as failed; left out, none."""

    def rules(self) -> list[str]:
        """Refuse tests that cannot be passed and settings without effect."""
        faults = []
        if self.needles is not None and self.required > self.needles:
            faults.append(f"required={self.required}: must be <= needles={self.needles}; lower required")
        if self.max_length is not None and self.max_length < self.step:
            faults.append(f"max_length={self.max_length}: must be >= step={self.step}; lower step or raise max_length")
        idle = {name: getattr(self, name) for name in ("error", "round")} if not self.sequential else {}
        faults += [
            f"{name}={value}: would be ignored; leave it out, or set sequential to true"
            for name, value in idle.items()
            if value is not None
        ]
        faults += self.distance_faults()
        if self.round is not None and self.round > self.tests:
            faults.append(f"round={self.round}: must be <= tests={self.tests}; lower it")
        faults += [
            f"{name}={getattr(self, name)}: must be {size} in the {self.protocol} protocol; leave it out or use "
            "protocol: ours"
            for name, size in OFFICIAL_SIZES.get(self.protocol, {}).items()
            if getattr(self, name) not in (None, size)
        ]
        return faults

    def distance_faults(self) -> list[str]:
        """List the faults in the settings of the one-number tests."""
        faults = []
        for name, value in (("distance_points", self.distance_points), ("distances", self.distances)):
            if value is not None and not self.distance_tests:
                faults.append(f"{name}={value}: would be ignored; leave it out, or raise distance_tests")
        if self.distances is not None and self.distance_points is not None:
            faults.append(f"distance_points={self.distance_points}: would be ignored; leave it or distances out")
        if self.distances is not None and list(self.distances) != sorted(set(self.distances)):
            faults.append(f"distances={list(self.distances)}: must rise; sort them and keep each once")
        return faults

    @property
    def sizes(self) -> dict[str, int]:
        """Needles and digits of a test, and the tokens left for its answer."""
        given = {name: getattr(self, name) for name in SIZES if getattr(self, name) is not None}
        return {**SIZES, **OFFICIAL_SIZES.get(self.protocol, {}), **given}

    @property
    def budget(self) -> int:
        """Tokens of each length that are left for the answer."""
        return self.sizes["answer_budget"]

    def rows(self, device: str) -> int:
        """Return the most tests that generate together on a kind of device."""
        return self.batch or BATCHES.get(device, BATCHES["cuda"])

    @property
    def all_thresholds(self) -> tuple[float, ...]:
        """All thresholds of effective length, rising."""
        return tuple(sorted({self.threshold, *(self.thresholds or ())}))

    @property
    def error_rate(self) -> float:
        """Error of a sequential length."""
        return ERROR if self.error is None else self.error

    @property
    def round_size(self) -> int:
        """Tests between two looks."""
        return self.round or -(-self.tests // ROUNDS)

    def lengths(self, shortest: int, window: int) -> list[int]:
        """List the lengths to probe: multiples of `step` from the first with room for `shortest` tokens on."""
        first = -(-shortest // self.step) * self.step
        return list(range(first, self.longest(window) + 1, self.step))

    def longest(self, window: int) -> int:
        """Return the longest length that is probed."""
        return self.max_length or LIMIT_WINDOWS * window
