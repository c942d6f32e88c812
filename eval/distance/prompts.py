"""The tests of eval.distance in prompts shorter than the window, which tell distance from the length of the prompt.

At one distance a test hides the same number in every prompt; what differs is how much text stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from eval.distance.series import Row
from eval.engine.needle_tests import counts_of
from eval.engine.subject import Subject
from lab.errors import ConfigError
from lab.probe.effective_distance import DistanceProbe, DistanceResult
from lab.probe.records import distance_record


def shorter_prompts(probe: DistanceProbe, lengths: Sequence[int]) -> list[DistanceProbe]:
    """Build the tests in shorter prompts, the shortest first; the window itself is what is measured anyway.

    Raises: ConfigError for a prompt longer than the window, or one that none of the distances fits into.
    """
    window = probe.test.window
    shorter = [probe.in_prompt(length) for length in sorted({*lengths} - {window})]
    rule = f"must be {window} or less, the window, and have room for a distance of {probe.distances[0]}"
    wrong = [each.test.window for each in shorter if each.test.window > window or not each.distances]
    if wrong:
        raise ConfigError(*(f"--prompt={length}: {rule}; name others" for length in wrong))
    return shorter


def left_out(probe: DistanceProbe, shorter: Sequence[DistanceProbe]) -> list[str]:
    """Name the distances that have no room in a shorter prompt."""
    return [
        f"no room in {each.test.window:,} tokens: {', '.join(str(d) for d in missing)}"
        for each in shorter
        if (missing := [distance for distance in probe.distances if distance not in each.distances])
    ]


def rows_of(subject: Subject, probe: DistanceProbe, results: list[DistanceResult]) -> list[Row]:
    """Write down what was found in prompts of one length; `context` is the prompt with the answer, in tokens."""
    about = {**subject.row, "metric": "found_by_prompt", "context": probe.test.window}
    counts = counts_of(subject)
    return [distance_record(probe, result, about, counts) for result in results]
