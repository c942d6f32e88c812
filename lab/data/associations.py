"""Needles that share no word with their question: numbers at places, of which one is asked for by its region.

    needle                  The sign at the Colosseum shows 471382.
    question, associated    Which digits can be read in Rome? The digits are
    question, literal       Which digits can be read at the Colosseum? The digits are

The test does not say that the Colosseum is in Rome: the model must know it, as in NoLiMa (arXiv:2502.05167), of which
no sentence is used here. Several signs are side by side, and the one asked for is drawn for every test. So a model that
reads the signs but knows no place finds one in as many, at any distance. The generated corpus can teach its own places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

SIGN = " The sign at {place} shows {number}."
ASKED = "\n\nWhich digits can be read {where}? The digits are"
FACT = " {place} lies in {region}."  # in training documents, never in a test
Question = Literal["literal", "associated"]
Pairs = Sequence[tuple[str, str]]
"""Places, each with the region that it is in."""
LANDMARKS: Pairs = (
    ("the Eiffel Tower", "Paris"),
    ("the Colosseum", "Rome"),
    ("Buckingham Palace", "London"),
    ("the Brandenburg Gate", "Berlin"),
    ("the Acropolis", "Athens"),
    ("Red Square", "Moscow"),
    ("the Statue of Liberty", "New York"),
    ("the Golden Gate Bridge", "San Francisco"),
    ("the Great Sphinx", "Egypt"),
    ("the Taj Mahal", "India"),
    ("Mount Fuji", "Japan"),
    ("Machu Picchu", "Peru"),
)


def draw_signs(
    rng: np.random.Generator, pairs: Pairs, numbers: Sequence[str], asked: int, *, literal: bool
) -> tuple[list[str], str]:
    """Put each number at a place of its own; return the signs, and the question about the one at index `asked`."""
    drawn = [pairs[k] for k in rng.choice(len(pairs), len(numbers), replace=False)]
    place, region = drawn[asked]
    signs = [SIGN.format(place=place, number=number) for (place, _), number in zip(drawn, numbers, strict=True)]
    return signs, ASKED.format(where=f"at {place}" if literal else f"in {region}")
