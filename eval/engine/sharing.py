"""Opens the model of a request, in several processes together where a window may exceed the memory of one GPU.

torchrun starts the processes with one command line, and each opens the whole model. The first reads, draws, prints and
writes as if it were alone; the others wait for its rows. All compute their part of every row's tokens (context
parallelism, lab/model/attention/context.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from eval.engine.command import Request
from eval.engine.subject import Subject, device_for, open_subject
from lab.errors import ConfigError
from lab.launch import Launch, read_launch
from lab.model.attention.context import ContextGroup

WAIT = timedelta(days=1)  # for the next row, while the first process reads, draws or writes


@contextmanager
def opened(request: Request, *, shared: bool) -> Iterator[Subject | None]:
    """Open the model; None in all processes but the first, once it has ended.

    Raises: LabError, also for a model whose heads cannot be divided among the processes.
    """
    launch = read_launch(os.environ)
    if not shared or launch.world_size == 1:
        yield open_subject(request)
        return
    with joined(launch, device_for(request.options.device)) as context:
        subject = open_subject(request)
        heads = subject.model.decoder.cfg.n_kv_heads
        if heads % context.degree:
            raise ConfigError(
                f"--nproc-per-node={context.degree}: processes that share a window must divide the {heads} key-value "
                f"heads of {request.model}; start fewer"
            )
        subject = replace(subject, context=context)
        if not launch.is_first:
            serve(subject)
            yield None
            return
        try:
            yield subject
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


def serve(subject: Subject) -> None:
    """Score the rows that the first process sends, until it sends none."""
    given: list[Any] = [None]
    while True:
        distributed.broadcast_object_list(given)
        if given[0] is None:
            return
        subject.losses(*given[0], sends=False)
