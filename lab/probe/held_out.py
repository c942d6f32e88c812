"""Loss on held-out text, packed as in training; the same packs at every call.

The loss is also summed by visible context, the c earlier tokens of its document that a token sees beside itself: the
gain in loss from context tells models apart that find nothing yet. Bucket 0 is c = 0, bucket b > 0 is
2^(b - 1) <= c < 2^b.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lab.counts import visible_context
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
        self.device, self.buckets = device, data.window.bit_length() + 1

    def sums(self, model: Scores) -> Tensor:
        """Sum the loss in nats and the scored tokens of each bucket over this rank's packs: float64 (buckets, 2)."""
        total = torch.zeros(self.buckets, 2, dtype=torch.float64, device=self.device)
        for pack in self.packs:
            tokens, targets = (torch.from_numpy(x)[None].to(self.device) for x in (pack.tokens, pack.targets))
            segments = Segments.from_lengths(pack.lengths, len(pack.tokens), self.device)
            losses = model(tokens, targets, segments)[0].double()
            sums = torch.stack([losses, (targets[0] >= 0).double()], 1)
            total.index_add_(0, bucket_of(pack.lengths, len(losses)).to(self.device), sums)
        return total


def bucket_of(lengths: Sequence[int], n_tokens: int) -> Tensor:
    """Return the bucket of every token of a packed row, int64 (n_tokens,); padding is in bucket 0, and not scored.

    Example:
        >>> bucket_of([6, 2], 9)
        tensor([0, 1, 2, 2, 3, 3, 0, 1, 0])
    """
    earlier = np.zeros(n_tokens, dtype=np.int64)
    earlier[: sum(lengths)] = visible_context(lengths)
    return torch.from_numpy(np.frexp(earlier)[1].astype(np.int64))  # the exponent is the bit length


def context_loss(sums: Tensor) -> dict[str, float]:
    """Average each bucket's loss, by the fewest earlier tokens in it; buckets without a token are left out.

    Example:
        >>> context_loss(torch.tensor([[6.0, 2.0], [0.0, 0.0], [9.0, 4.0], [2.0, 1.0]]))
        {'0': 3.0, '2': 2.25, '4': 2.0}
    """
    rows = enumerate(sums.tolist())
    return {str(1 << bucket >> 1): loss / scored for bucket, (loss, scored) in rows if scored}
