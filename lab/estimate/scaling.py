"""Time of a step under FSDP against the number of GPUs, from published bandwidths and latencies; no torch.

For P weights, T tokens a GPU, N GPUs in M nodes of 8, G groups of weights that are gathered apart:

    compute    T x FLOPs per token / (peak x utilisation)
    gather     2P bytes to every GPU of a sharding group, in bf16
    reduce     4P bytes, in float32; under hybrid sharding then 4P / 8 of every GPU, twice, between nodes
    exposed    what of gathering exceeds the forward pass, a third of a micro-batch, and of reducing the backward pass

A ring over r ranks moves (r - 1) / r of the bytes through each GPU's NVLink, and all of a node's network adapters; each
group of weights adds a latency of r - 1 hops. Nothing here is measured.

Source: data sheets of DGX A100 (NVLink 600 GB/s in both directions, 8 x 200 Gb/s), DGX H100 and H200 (900 GB/s,
8 x 400 Gb/s); latencies of NCCL's own cost model (src/graph/tuning.cc, protocol Simple).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.config import Experiment
from lab.model.utilisation import PEAK_FLOPS

NODE = 8  # GPUs
LINKS = {"A100": (300e9, 25e9), "H100": (450e9, 50e9), "H200": (450e9, 50e9)}  # bytes/s of a GPU: NVLink, network
HOP_S, NETWORK_HOP_S = 3.4e-6, 14e-6
WEIGHT_BYTES, GRADIENT_BYTES = 2, 4


@dataclass(frozen=True)
class Exchange:
    """Seconds of one collective over all groups of weights, by what it waits for."""

    bandwidth: float
    latency: float

    @property
    def all(self) -> float:
        """Both."""
        return self.bandwidth + self.latency

    def __add__(self, other: Exchange) -> Exchange:
        """Run one after the other."""
        return Exchange(self.bandwidth + other.bandwidth, self.latency + other.latency)


@dataclass(frozen=True)
class Step:
    """Seconds of a step; `limit` names what it waits for."""

    compute: float
    exposed: float
    limit: str

    @property
    def all(self) -> float:
        """Both."""
        return self.compute + self.exposed


def ring(size: float, ranks: int, nodes: int, links: tuple[float, float], groups: int) -> Exchange:
    """Gather or reduce `size` bytes in so many groups over consecutive ranks.

    Example, 8 GPUs of a node, 3 GB in 25 groups: 3 GB x 7/8 / 300 GB/s, and 25 x 7 hops:
        >>> made = ring(3e9, 8, 1, LINKS["A100"], 25)
        >>> made.bandwidth, round(made.latency, 6)
        (0.00875, 0.000595)
    """
    nvlink, network = links
    slowest = nvlink if nodes == 1 else min(nvlink, network * NODE)
    hops = (ranks - nodes) * HOP_S + (nodes - 1) * NETWORK_HOP_S
    return Exchange(size * (ranks - 1) / ranks / slowest, groups * hops)


def all_reduce(size: float, nodes: int, links: tuple[float, float], groups: int) -> Exchange:
    """Sum `size` bytes of each GPU over nodes, by a ring or a tree, whichever has the lower latency."""
    if nodes == 1:
        return Exchange(0.0, 0.0)
    hops = 2 * min(nodes - 1, (nodes - 1).bit_length())
    return Exchange(2 * size * (nodes - 1) / nodes / links[1], groups * hops * NETWORK_HOP_S)


def step_of(experiment: Experiment, gpus: int, *, hybrid: bool, gpu: str, utilisation: float) -> Step:
    """Estimate a step of the config's batch on so many GPUs, gathered and reduced once, in bf16."""
    model, train, links = experiment.model, experiment.train, LINKS[gpu]
    tokens = train.batch_tokens / gpus
    compute = tokens * model.flops_per_token_causal(experiment.data.window) / (PEAK_FLOPS[gpu] * utilisation)
    groups, weights = model.n_layers + (1 if model.tie_embeddings else 3), model.n_parameters()
    nodes, inside = max(1, gpus // NODE), min(gpus, NODE)
    if hybrid:
        gather = ring(WEIGHT_BYTES * weights, inside, 1, links, groups)
        reduce = ring(GRADIENT_BYTES * weights, inside, 1, links, groups)
        reduce += all_reduce(GRADIENT_BYTES * weights / inside, nodes, links, groups)
    else:
        gather = ring(WEIGHT_BYTES * weights, gpus, nodes, links, groups)
        reduce = ring(GRADIENT_BYTES * weights, gpus, nodes, links, groups)
    pack = compute / max(1.0, tokens / train.micro_batch_tokens)
    exposed = max(0.0, gather.all - pack / 3) + max(0.0, reduce.all - pack * 2 / 3)
    both = gather + reduce
    limit = "latency" if both.latency > both.bandwidth else "bandwidth"
    return Step(compute, exposed, limit if exposed else "compute")


def scaling_table(experiment: Experiment, counts: Sequence[int], *, gpu: str, utilisation: float) -> str:
    """Format the step of each number of GPUs, sharded over all of them and, replicated, inside nodes."""
    train = experiment.train
    head = f"{'GPUs':>6}{'tokens each':>13}{'compute ms':>12}{'all: step ms':>14}{'limit':>11}"
    lines = [f"{head}{'nodes: step ms':>16}{'limit':>11}{'tokens/s':>13}"]
    for gpus in counts:
        full, hybrid = (
            step_of(experiment, gpus, hybrid=hybrid, gpu=gpu, utilisation=utilisation) for hybrid in (False, True)
        )
        best = min(full.all, hybrid.all)
        row = f"{gpus:>6,}{train.batch_tokens // gpus:>13,}{1e3 * full.compute:>12,.0f}{1e3 * full.all:>14,.0f}"
        lines.append(
            f"{row}{full.limit:>11}{1e3 * hybrid.all:>16,.0f}{hybrid.limit:>11}{train.batch_tokens / best:>13,.0f}"
        )
    return "\n".join(
        [f"steps of {train.batch_tokens:,} tokens on {gpu}, weights sharded over all or inside nodes", *lines]
    )
