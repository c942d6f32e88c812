"""Finished tests on disk, so that a probe that was stopped goes on where it was.

tests-TOKENS-KEY.jsonl holds, one whole line each, the key and every finished test. The key is all that decides how a
test comes out: checkpoint, position methods, protocol, text, seed. How many tests there are, at which lengths, and what
passes is not in it: a probe that asks for more takes up the tests of one that asked for less.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eval.common.appended import Appended
from lab.errors import CheckpointError
from lab.probe.effective_length import Memory, NeedleProbe, Row


def key_of(probe: NeedleProbe, *, weights: str, method: str, in_bf16: bool, device: str) -> dict[str, Any]:
    """Gather all that decides how a test comes out, beside its length and number."""
    return {
        "weights": weights,
        "method": method,
        "precision": "bf16" if in_bf16 else "fp32",
        "device": device,
        "protocol": probe.config.protocol,
        "needles": probe.needles,
        "digits": probe.digits,
        "answer_budget": probe.config.answer_budget,
        "haystack": hashlib.sha256(probe.haystack.encode()).hexdigest(),
        "shortest_prompt": probe.case(probe.shortest(), 0).prompt_hash,  # names the tokenizer and how cases are drawn
        "seed": probe.seed,
    }


class FinishedTests(Memory):
    """The finished tests of one key; `report` hears how many have just been added."""

    def __init__(self, folder: Path, consumed_tokens: int, key: Mapping[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:8]
        self.path = folder / f"tests-{consumed_tokens:015d}-{digest}.jsonl"
        self.report: Callable[[int], Any] = lambda tests: None
        self.file = Appended(self.path)
        if not self.file.rows:
            self.file.add([{"key": dict(key)}])
        head, *rows = self.file.rows
        if head != {"key": dict(key)}:
            raise CheckpointError(f"{self.path}: its first line names other settings; move the file away")
        self.rows: dict[tuple[int, int], Row] = {(row["length"], row["test"]): row for row in rows}

    def known(self, length: int) -> Mapping[int, Row]:
        """Give the finished tests of a length by number."""
        return {test: row for (other, test), row in self.rows.items() if other == length}

    def keep(self, length: int, rows: Mapping[int, Row]) -> None:
        """Add finished tests; they are on the disk when this returns."""
        named = {test: {"length": length, "test": test, **row} for test, row in rows.items()}
        self.file.add(named.values())
        self.rows |= {(length, test): row for test, row in named.items()}
        self.report(len(named))
