"""Watch the other ranks of this machine, and torchrun: where one of them has died, the run ends with its name.

A rank that dies leaves the others in a collective call, which fails with a traceback of its own, or hangs. Nothing can
be saved then; the run is continued from its last checkpoint. The ranks of a torchrun that dies save and stop.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from lab.command import FAILED, show
from lab.launch import Launch
from lab.lifetime import described_end
from lab.owner import Record, describe_process, is_of_this_machine, process_start, stat_fields
from lab.train.callbacks.guarding import OutOfStep, describe, exchange

POLL_S, APPEAR_S = 0.5, 3.0  # between looks; until a process that closed its connections has ended
HANG_S = 10.0  # in which the others fail by themselves, or end as well where all have ended
LATE_S = 5.0  # for the others to notice as well
LEAVE_S = 30.0  # for a rank that has failed to end by itself; its last kernels may wait for the others for ever
LOST = re.compile("peer|timed out|remote", re.IGNORECASE)  # in the errors of gloo and NCCL


class Watching(Callback):
    """Ends this process once another rank has died; `command` continues the run.

    Where the process `exits` after the run, it also ends if the run has failed and something keeps the process.
    """

    def __init__(self, launch: Launch, command: str, *, exits: bool) -> None:
        self.launch, self.command, self.exits = launch, command, exits
        self.parent = os.getppid() if launch.by == "torchrun" else None
        self.ranks: list[Record] = []
        self.ended = threading.Event()

    def setup(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        """Collect the processes of all ranks, and begin to watch."""
        if trainer.world_size > 1:
            self.ranks = exchange(describe_process())
            threading.Thread(target=self.watch, args=(trainer, module), daemon=True, name="watching").start()

    def teardown(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        """Stop watching: from here on each rank ends in its own time."""
        self.ended.set()

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        """End this process if another rank's death is why a collective call failed, or if the others wait for it."""
        self.ended.set()
        if self.ranks and self.exits:
            leave = threading.Timer(LEAVE_S, self.fail, [exception])
            leave.daemon = True
            leave.start()
        deadline = time.monotonic() + APPEAR_S
        while self.ranks and isinstance(exception, RuntimeError) and time.monotonic() < deadline:
            self.end_without(self.dead(), trainer)
            time.sleep(POLL_S / 10)
        others = sorted({str(other["host"]) for other in self.ranks if not is_of_this_machine(other)})
        if others and isinstance(exception, RuntimeError) and LOST.search(str(exception)):
            self.end(f"a rank on {' or '.join(others)} has ended or cannot be reached ({describe(exception)})")
        if isinstance(exception, OutOfStep):
            self.fail(exception)

    def fail(self, exception: BaseException) -> None:
        """End this process, which the others wait for; they see it and end as well."""
        reason = str(exception) if isinstance(exception, OutOfStep) else describe(exception)
        show(f"\nrank {self.launch.rank} (process {os.getpid()}) failed ({reason})", error=True)
        os._exit(FAILED)

    def watch(self, trainer: lightning.Trainer, module: Any) -> None:
        """Look at intervals for ranks that have died, as this one may hang, and for the launcher."""
        noticed: float | None = None
        while not self.ended.wait(POLL_S):
            dead = self.dead()
            noticed = (noticed or time.monotonic()) if dead else None
            codes = [self.exit_code(rank, trainer) for rank in dead]
            killed = any(code is not None and code < 0 for code in codes)
            if noticed and (killed or time.monotonic() - noticed > HANG_S):
                self.end_without(dead, trainer)
            if self.parent not in (None, os.getppid()):
                if self.launch.prints_faults:
                    show(f"torchrun (process {self.parent}) of rank {self.launch.rank} has ended; saving", error=True)
                self.parent, module.stop_asked = None, True

    def dead(self) -> list[int]:
        """List the ranks of this machine whose process has ended."""
        return [rank for rank in self.local() if process_start(self.ranks[rank]["pid"]) != self.ranks[rank]["start"]]

    def exit_code(self, rank: int, trainer: lightning.Trainer) -> int | None:
        """Look up how a rank ended: from its parent, if that is this process, or as long as its parent has not."""
        pid = self.ranks[rank]["pid"]
        children = getattr(trainer.strategy.launcher, "procs", [])
        found = {child.pid: child.poll() for child in children}.get(pid)
        return zombie_code(pid) if found is None else found

    def end_without(self, dead: Sequence[int], trainer: lightning.Trainer) -> None:
        """End this process if any rank is dead, and name those killed by a signal, or else all."""
        codes = {rank: self.exit_code(rank, trainer) for rank in dead}
        killed = [rank for rank, code in codes.items() if code is not None and code < 0] or list(dead)
        names = [f"rank {rank} (process {self.ranks[rank]['pid']}) {described_end(codes[rank])}" for rank in killed]
        if names:
            self.end("; ".join(names), first=min(set(self.local()) - set(dead)))

    def local(self) -> list[int]:
        """List the ranks of this machine."""
        return [rank for rank, one in enumerate(self.ranks) if is_of_this_machine(one)]

    def end(self, reason: str, first: int | None = None) -> None:
        """End this process soon; the first rank of a machine that is left prints why, and how to go on.

        It ends last but for those that wait for it, so that no other rank finds it dead and prints as well.
        """
        first = min(self.local()) if first is None else first
        prints = self.launch.rank == first
        if prints:
            show(f"\n{reason}; all ranks end; continue with: {self.command}", error=True)
        end = time.monotonic() + (LATE_S if prints else 2 * HANG_S)
        while time.monotonic() < end and (
            len(self.local()) - len(self.dead()) > 1 if prints else first not in self.dead()
        ):
            time.sleep(POLL_S / 10)
        os._exit(FAILED)


def zombie_code(pid: int) -> int | None:
    """Read the exit status of a process of this user that its parent has not waited for yet, negative for a signal.

    Source: proc_pid_stat(5), fields 3 and 52.
    """
    fields = stat_fields(pid)
    return os.waitstatus_to_exitcode(int(fields[49])) if fields and fields[0] == "Z" else None
