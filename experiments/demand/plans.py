"""What the experiments of docs/demand.md compare: their arms, bands of distances, and the tests of the predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from eval.reach import PLAIN
from lab.schema import flatten

GAIN = "gain"  # of eval.recall, the outcome on real text
GAPPED = "gapped"  # in place of a method: asked at relative positions beyond the distance in tokens
FAR, LAST = (48, 64, 96, 128), 179
BASE, CENSORED_DEMAND = "pre-norm", ", demand to 96"
Config = dict[str, Any]
ARMS: dict[str, Config] = {  # the first whose settings a run has is its arm
    "post-norm": {"model.norm": "post"},
    "sandwich norm": {"model.norm": "sandwich"},
    "norm of q and k": {"model.qkv": "norm"},
    "gated attention": {"model.gate": True},
    "window, full": {"model.layers.pattern": ["window", "full"]},
    "window, no rope, temperature": {"model.softmax.method": "temperature"},
    "window, no rope": {"model.layers.pattern": ["window", "nope"]},
    "rope on 3/4": {"model.layers.pattern": ["part"]},
    "scalable softmax": {"model.softmax.method": "scalable"},
    "sink": {"model.softmax.method": "sink"},
    "2 key heads": {"model.n_kv_heads": 2},
    "1 key head": {"model.n_kv_heads": 1},
    "growing blocks": {"data.schedule.start": 16},
    "joined documents": {"data.mode": "concatenated"},
}


class Contrast(NamedTuple):
    """A difference between two arms in the mean outcome over distances from `low` to `high`, for a prediction."""

    prediction: str
    arm: str
    other: str
    low: int
    high: int


def by_weights(config: Config) -> str:
    """Name a run's arm by its loss weights.

    Example:
        >>> by_weights({"weights": {"keep": [[0, 64]], "control": "near", "fraction": 1.0}})
        'near 64'
    """
    weights = config.get("weights")
    if weights is None:
        return "untouched"
    control = weights["control"]
    if len(weights["keep"]) > 1:
        return "hole" if control == "none" else f"hole, {control}"
    if weights["fraction"] < 1:
        return f"dose 1/{round(1 / (1 - weights['fraction']))}"
    return f"{'far' if control == 'none' else control} {weights['keep'][0][1]}"


def by_gaps(config: Config) -> str:
    """Name a run's arm by its gaps and loss weights."""
    return f"{'no gaps' if config.get('skip') is None else 'gaps'}, {by_weights(config)}"


def by_fork(config: Config) -> str:
    """Name a run of forks: the table, the seed and the arm make up its name.

    Example:
        >>> by_fork({"run": {"name": "S3_64-2-far_off_64"}})
        'far off 64'
    """
    return str(config["run"]["name"]).split("-", 2)[2].replace("_", " ")


def by_sections(config: Config) -> str:
    """Name a run's arm by its corpus's sections."""
    corpus = config["data"]["corpus"]
    return f"sections of {corpus['section_tokens']:g}, {corpus['asks']} asks"


def by_parts(config: Config) -> str:
    """Name a run's arm of ARMS, and whether demand is censored.

    Example:
        >>> by_parts({"model": {"norm": "post"}}), by_parts({"model": {}, "weights": {"by": "evidence"}})
        ('post-norm', 'pre-norm, demand to 96')
    """
    settings = flatten(config)
    arms = (name for name, own in ARMS.items() if all(settings.get(key) == value for key, value in own.items()))
    return next(arms, BASE) + CENSORED_DEMAND * bool(config.get("weights"))


class Plan(NamedTuple):
    """What an experiment compares: the tables of its runs, its arms, bands of distances, and tests.

    `outcome` is what a distance is measured by: log p of the right number in nats, or GAIN. `method` is the one under
    which arms are compared; with `methods` arms are listed under each. `equal` are pairs of arms that should be equal.
    `crossed` are each four arms, of which the last two differ as the first two do: is the effect on ln reach the same?
    `panels` are the arms of each panel of the picture; without any, all are in one. With `details` arms have their
    held-out loss and reach at a threshold of 0.5. `beside` are bands of relative positions at which
    log p is measured too, as under GAPPED. `trend` are arms over whose order an outcome should rise.
    """

    tables: tuple[str, ...]
    arms: tuple[str, ...]
    bands: tuple[tuple[int, int], ...]
    contrasts: tuple[Contrast, ...] = ()
    equal: tuple[tuple[str, str, str], ...] = ()
    crossed: tuple[tuple[str, ...], ...] = ()
    name: Callable[[Config], str] = by_weights
    method: str = PLAIN
    methods: bool = False
    outcome: str = "log p"
    panels: tuple[tuple[str, ...], ...] = ()
    details: bool = False
    beside: tuple[tuple[int, int], ...] = ()
    trend: tuple[str, ...] = ()


CONTROLS = ("far", "near", "random")
HOLE = tuple(f"hole{name}" for name in ("", ", near", ", random"))
DOSES = tuple(f"dose 1/{4**k}" for k in range(1, 5))
CROSSED = tuple((BASE, BASE + CENSORED_DEMAND, arm, arm + CENSORED_DEMAND) for arm in ARMS)
FORKED = ("all", "far off", "kind off")
THIRDS = ((48, 60), (72, 120), (132, LAST))
PLANS = {
    "1": Plan(
        ("1",),
        ("untouched", *(f"{name} {D}" for D in FAR for name in CONTROLS)),
        ((48, 48), (49, 64), (65, 96), (97, 128), (129, LAST)),
        (
            *(Contrast("1a", f"far {D}", f"{other} {D}", D + 1, LAST) for other in CONTROLS[1:] for D in FAR),
            *(Contrast("1d", f"far {D}", "untouched", 48, D) for D in FAR),
        ),
        tuple(("1c", f"{name} {D}", "untouched") for D in FAR for name in CONTROLS[1:]),
        panels=tuple(("untouched", *(f"{name} {D}" for name in CONTROLS)) for D in FAR),
        trend=(*(f"far {D}" for D in FAR), "untouched"),
    ),
    "2": Plan(
        ("1", "2"),
        ("untouched", *HOLE, "far 64"),
        THIRDS,
        (
            Contrast("2a", "hole", "untouched", 72, 120),
            Contrast("2a", "hole", "hole, near", 72, 120),
            Contrast("2b", "hole", "far 64", 72, 120),
            Contrast("-", "hole", "untouched", 132, LAST),
        ),
        (("-", "hole, near", "untouched"), ("-", "hole, random", "untouched")),
    ),
    "3": Plan(
        ("1", "3"),
        ("untouched", *DOSES, "far 64"),
        THIRDS,
        (
            *(Contrast("3b", arm, "far 64", 72, LAST) for arm in ("untouched", *DOSES)),
            *(Contrast("3a", arm, other, 72, LAST) for arm, other in zip(("untouched", *DOSES), DOSES)),
        ),
    ),
    "5": Plan(
        ("5",),
        ("no gaps, untouched", "no gaps, far 64", "gaps, untouched", "gaps, far 64"),
        ((24, 60), (72, 120), (144, 192), (240, 288)),
        (
            Contrast("5a", "gaps, far 64", "no gaps, far 64", 72, 192),
            Contrast("5a", "gaps, far 64", "no gaps, untouched", 240, 288),
        ),
        name=by_gaps,
        method=GAPPED,
    ),
    "9": Plan(
        ("9",),
        tuple(f"sections of {tokens}, {asks} asks" for asks in ("every", "last") for tokens in (96, 192)),
        THIRDS,
        tuple(
            Contrast("9a", f"sections of 192, {asks} asks", f"sections of 96, {asks} asks", 72, LAST)
            for asks in ("every", "last")
        ),
        crossed=(tuple(f"sections of {tokens}, {asks} asks" for asks in ("every", "last") for tokens in (192, 96)),),
        name=by_sections,
    ),
    "10": Plan(
        ("10",),
        tuple(f"{arm}{ending}" for arm in (BASE, *ARMS) for ending in ("", CENSORED_DEMAND)),
        THIRDS,
        tuple(Contrast("moves", arm, BASE, 48, LAST) for arm in ARMS),
        crossed=CROSSED,
        name=by_parts,
        panels=CROSSED,
        details=True,
    ),
    "S1": Plan(
        ("S1",),
        ("base", "all", "far off", "near off", "kind off"),
        ((65, LAST),),
        tuple(Contrast("S1a", arm, "far off", 65, LAST) for arm in ("all", "near off", "kind off")),
        name=by_fork,
        beside=((72, 192), (240, 288)),
    ),
    "S3": Plan(
        ("S3_64", "S3_96"),
        ("base", *(f"{arm} {D}" for D in (64, 96) for arm in FORKED)),
        ((65, LAST),),
        tuple(Contrast("S3a", f"{arm} {D}", f"far off {D}", 65, LAST) for D in (64, 96) for arm in ("kind off", "all")),
        name=by_fork,
        panels=tuple(tuple(f"{arm} {D}" for arm in FORKED) for D in (64, 96)),
    ),
    "S4": Plan(
        ("S4",),
        ("base", "all", "far off", "loss off"),
        ((2, 64), (65, 512)),
        (Contrast("S4a", "far off", "loss off", 65, 512), Contrast("S4a", "far off", "all", 65, 512)),
        (("S4", "far off", "all"),),
        name=by_fork,
        outcome=GAIN,
    ),
    "8": Plan(("1", "2"), ("untouched", *(f"far {D}" for D in FAR), "hole"), THIRDS, methods=True),
}
