"""Loss on held-out text, packed as in training; the same packs at every call."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.data.config import DataConfig
from lab.data.packing import PackStream
from lab.data.preparation import shard_folder
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.model.attention.segments import Segments
from lab.probe.interfaces import Scores


class HeldOutLoss:
    """Draws the first packs of the held-out split once and scores each rank's part of them."""

    def __init__(
        self, data: DataConfig, *, tokens: int, pack_tokens: int, rank: int, world_size: int, device: torch.device | str
    ) -> None:
        store = TokenStore.open(shard_folder(data), "held_out")
        segments = index_segments(store, "natural", data.window)
        n_packs = max(1, min(tokens, store.n_tokens) // pack_tokens)
        stream = PackStream(
            store, segments, stream=0, n_streams=1, pack_tokens=pack_tokens, seed=0, look_ahead=data.look_ahead
        )
        packs = [next(stream) for _ in range(n_packs)]
        self.packs = packs[rank::world_size]
        idle = -(-n_packs // world_size) - len(self.packs)
        self.idle = packs[:idle]  # scored to stay in step with the other ranks, and not counted
        self.device = device

    def sums(self, model: Scores) -> Tensor:
        """Sum the loss in nats and the scored tokens over this rank's packs: float64 (2,).

        Every rank calls the model equally often, as a sharded model needs.
        """
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for pack in [*self.packs, *self.idle]:
            tokens, targets = (torch.from_numpy(x)[None].to(self.device) for x in (pack.tokens, pack.targets))
            segments = Segments.from_lengths(pack.lengths, len(pack.tokens), self.device)
            counts = pack not in self.idle
            total[0] += model(tokens, targets, segments) * counts
            total[1] += int((targets >= 0).sum()) * counts
        return total
