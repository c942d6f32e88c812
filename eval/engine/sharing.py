"""Processes that score rows together, so that a window may exceed the memory of one GPU.

torchrun starts them with one command line, and each opens the whole model. The first reads, draws, prints and writes as
if it were alone; the others wait for its rows. All compute their part of every row's tokens (context parallelism,
lab/model/attention/context.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

from eval.engine.command import Request
from eval.engine.rows import Found
from eval.engine.subject import Subject, device_for, open_subject
from lab.errors import ConfigError
from lab.launch import Launch, read_launch
from lab.model.attention.context import ContextGroup

WAIT = timedelta(days=1)  # for the next row, while the first process reads, draws or writes

Score = Callable[[Tensor, Tensor], Tensor]


def measure_together(request: Request, measure: Callable[[Request, Subject, Score], Found]) -> Found | None:
    """Measure in the first process and return what it found; score rows in the others until it ends.

    Raises: LabError, also for a model whose heads cannot be divided among the processes.
    """
    launch = read_launch(os.environ, devices=1, nodes=1)
    if launch.by != "torchrun" or launch.world_size == 1:
        subject = open_subject(request)
        return measure(request, subject, subject.losses)
    with joined(launch, device_for(request.options.device)) as context:
        subject = open_subject(request)
        heads = subject.model.decoder.cfg.n_kv_heads
        if heads % context.degree:
            raise ConfigError(
                f"--nproc-per-node={context.degree}: processes that share a window must divide the {heads} key-value "
                f"heads of {request.model}; start fewer"
            )
        if not launch.is_first:
            serve(subject, context)
            return None
        try:
            return measure(request, subject, partial(score_together, subject, context))
        finally:
            distributed.broadcast_object_list([None])


@contextmanager
def joined(launch: Launch, device: torch.device) -> Iterator[ContextGroup]:
    """Form one group of all processes, each with a GPU of its own where there are GPUs."""
    if device.type == "cuda":
        torch.cuda.set_device(launch.local_rank)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=WAIT)
    try:
        context = ContextGroup.of(launch.world_size)
        assert context is not None, "there are several processes"
        yield context
    finally:
        distributed.destroy_process_group()


def score_together(subject: Subject, context: ContextGroup, tokens: Tensor, targets: Tensor) -> Tensor:
    """Send rows to the other processes and score them with these."""
    distributed.broadcast_object_list([(tokens, targets)])
    return subject.losses(tokens, targets, context)


def serve(subject: Subject, context: ContextGroup) -> None:
    """Score the rows that the first process sends, until it sends none."""
    given: list[Any] = [None]
    while True:
        distributed.broadcast_object_list(given)
        if given[0] is None:
            return
        tokens, targets = given[0]
        subject.losses(tokens, targets, context)
