"""What is planted into a run: an error, a signal, a pause or another result, at a call of one of its functions."""

import functools
import hashlib
import importlib
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from lab.core.errors import DataError  # noqa: F401
from tests.launching import patched


@dataclass(frozen=True)
class Fault:
    """An event at the n-th call of `module:function`, on some ranks, or on all of them."""

    at: str
    event: Exception | int | float | str | Callable
    """An error, a signal to the own process, seconds, a folder to name the rank in before waiting for an end, or a
    function that changes the result."""
    call: int = 1
    ranks: tuple[int, ...] | None = None
    stays: bool = False
    """Whether the event comes at the later calls, too."""
    waits_s: float = 600

    def patch(self):
        module, _, names = self.at.partition(":")
        *owners, name = names.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        own, calls = getattr(owner, name), []

        @functools.wraps(own)
        def faulty(*arguments, **options):
            calls.append(0)
            rank = int(os.environ.get("RANK", "0"))
            late = len(calls) - self.call
            if late < 0 or (late > 0 and not self.stays) or (self.ranks is not None and rank not in self.ranks):
                return own(*arguments, **options)
            if callable(self.event):
                return self.event(own(*arguments, **options))
            if isinstance(self.event, Exception):
                raise self.event
            if isinstance(self.event, int):
                os.kill(os.getpid(), self.event)
            elif isinstance(self.event, float):
                time.sleep(self.event)
            else:
                Path(self.event, str(rank)).touch()
                time.sleep(self.waits_s)
            return own(*arguments, **options)

        return mock.patch.object(owner, name, faulty)


@dataclass(frozen=True)
class Ledger:
    """Writes down in a file what each pack is that is trained on, by the tokens consumed before and by its stream."""

    path: str

    def patch(self):
        from lab.train import loop

        own = loop.compute_loss

        def recording(state, batch, **options):
            inputs = batch.inputs
            arrays = (inputs.tokens, inputs.targets, inputs.cu_seqlens, inputs.position_ids)
            digest = hashlib.sha256(b"".join(array.numpy().tobytes() for array in arrays)).hexdigest()
            with open(self.path, "ab", buffering=0) as file:
                file.write(f"{state.consumed} {batch.pack.stream} {digest}\n".encode())
            return own(state, batch, **options)

        return mock.patch.object(loop, "compute_loss", recording)

    def read(self):
        """Return the packs of every attempt, as sets of digests, which have one entry if all attempts were alike."""
        packs = defaultdict(set)
        for line in Path(self.path).read_text().splitlines():
            consumed, stream, digest = line.split()
            packs[int(consumed), int(stream)].add(digest)
        return packs


def planting(*faults):
    """Write the code that plants faults, or a ledger, before a command begins."""
    plants = [f"{fault!r}.patch().start()" for fault in faults]
    return "\n".join(["from tests.faults import DataError, Fault, Ledger", *plants])


def planted(words, *faults):
    """Plant faults into a command of lab.fit."""
    return patched(words, planting(*faults))
