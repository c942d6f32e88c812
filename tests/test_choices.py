"""What the start of a run notes about the machine."""

import pytest
import torch

from lab.choices import slow_precision
from tests.fits import load

ZEN3 = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}


@pytest.mark.parametrize(
    ("processor", "precision", "notes"),
    [
        (ZEN3, "bf16", 1),
        (ZEN3, "fp32", 0),
        (ZEN3 | {"avx512_bf16": True}, "bf16", 0),
        (ZEN3 | {"amx_bf16": True}, "bf16", 0),
        ({"architecture": "aarch64"}, "bf16", 0),
        ({}, "bf16", 0),
    ],
)
def test_bf16_without_instructions_for_it_is_noted(processor, precision, notes, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
    found = slow_precision(load(f"--train.precision={precision}"), torch.device("cpu"))
    assert [line.partition(":")[0] for line in found] == ["train.precision=bf16"] * notes
