"""What the experiments of docs/demand.md compare: arms, bands of distances, tests of predictions."""

from typing import Any, NamedTuple

GAPPED = "gapped"  # in place of a method: asked at relative positions beyond the distance in tokens
LAST = 179
Config = dict[str, Any]


class Contrast(NamedTuple):
    """A difference between two arms in the mean outcome over distances from `low` to `high`, for a prediction."""

    prediction: str
    arm: str
    other: str
    low: int
    high: int


def by_fork(config: Config) -> str:
    """Name a run of forks: the table, the seed and the arm make up its name.

    Example:
        >>> by_fork({"run": {"name": "S3_64-2-far_off_64"}}), by_fork({"run": {"name": "S3_64-2-base"}})
        ('far off 64', 'base 64')
    """
    table, _, arm = str(config["run"]["name"]).split("-", 2)
    beyond = table.partition("_")[2]
    if beyond and arm == "base":  # each table of S3 has bases of its own
        arm = f"base {beyond}"
    return arm.replace("_", " ")


class Plan(NamedTuple):
    """What an experiment compares: the tables of its runs, its arms, bands of distances, and tests.

    `panels` are the arms of each panel of the picture; without any, all are in one. `beside` are bands of relative
    positions at which log p is measured too, as under GAPPED.
    """

    tables: tuple[str, ...]
    arms: tuple[str, ...]
    bands: tuple[tuple[int, int], ...]
    contrasts: tuple[Contrast, ...] = ()
    panels: tuple[tuple[str, ...], ...] = ()
    beside: tuple[tuple[int, int], ...] = ()


FORKED = ("all", "far off", "kind off")
PLANS = {
    "S1": Plan(
        ("S1",),
        ("base", "all", "far off", "near off", "kind off"),
        ((65, LAST),),
        tuple(Contrast("S1a", arm, "far off", 65, LAST) for arm in ("all", "near off", "kind off")),
        beside=((72, 192), (240, 288)),
    ),
    "S3": Plan(
        ("S3_64", "S3_96"),
        tuple(f"{arm} {D}" for D in (64, 96) for arm in ("base", *FORKED)),
        ((65, LAST),),
        tuple(Contrast("S3a", f"{arm} {D}", f"far off {D}", 65, LAST) for D in (64, 96) for arm in ("kind off", "all")),
        panels=tuple(tuple(f"{arm} {D}" for arm in FORKED) for D in (64, 96)),
    ),
}
