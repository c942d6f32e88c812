from dataclasses import dataclass

import pytest

from lab import testing
from lab.masks import MASKS, Document
from lab.positions.self_extend import Rerope
from lab.testing import check_distance_method


@pytest.mark.parametrize("mask", MASKS.values())
def test_masks_of_the_lab_pass(mask):
    testing.check_mask(mask)


def changed(base, name, change):
    """Derive a class whose method or property returns something else."""
    was = getattr(base, name)
    now = property(lambda self: change(was.fget(self))) if isinstance(was, property) else None
    return dataclass(frozen=True, kw_only=True)(
        type("Changed", (base,), {name: now or (lambda self, *a: change(was(self, *a)))})
    )


BROKEN = {
    "positions": (check_distance_method, Rerope, "rel_pos", lambda r: r + (r == 4), {"window": 4}, "band 1 differs"),
    "type": (check_distance_method, Rerope, "rel_pos", lambda r: r.float(), {"window": 4}, "must be float64"),
    "missing_band": (check_distance_method, Rerope, "bands", lambda b: b[:1], {"window": 4}, "must lie in one band"),
    "twice": (check_distance_method, Rerope, "bands", lambda b: (*b, b[1]), {"window": 4}, "must lie in one band"),
    "not_finite": (check_distance_method, Rerope, "rel_pos", lambda r: r / 0, {"window": 4}, "must be finite"),
    "near": (testing.check_mask, Document, "visible", lambda seen: seen & seen.triu(-3), {}, "query and key"),
    "itself": (testing.check_mask, Document, "visible", lambda seen: seen.tril(-1), {}, r"\[0, 0\]"),
}


@pytest.mark.parametrize(("check", "base", "name", "change", "parameters", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_methods_fail(check, base, name, change, parameters, message):
    check(base, **parameters)
    with pytest.raises(AssertionError, match=message):
        check(changed(base, name, change), **parameters)
