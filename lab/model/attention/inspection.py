"""Queries, keys and logits of a decoder's attention, layer by layer, for measurements.

Queries and keys are recorded before rotation. One forward pass is then enough for every shift of the positions and
every rounding of rotated values. Logits are computed in blocks of queries, never as a (T, T) matrix of all heads.

Axes: B batch, N heads, T tokens, H per head, Q queries of a block, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lab.core.errors import DataError
from lab.model.attention.attend import band_logits
from lab.model.attention.layout import LayerInputs
from lab.model.block import Block
from lab.model.huggingface.foreign import AnyDecoder, Foreign

BLOCK_LOGITS = 2**22  # most logits of a block, 16 MiB in float32; larger blocks were measured to be slower on a CPU


def check_finite(values: Tensor, name: str, fix: str | None = None) -> None:
    """Raise DataError for NaN and infinite values, which would spread into every number that follows."""
    if not values.isfinite().all():
        fix = fix or "the model overflows; measure it in float32 (--device=cpu), or use another checkpoint"
        raise DataError(f"{name}: holds NaN or infinite values; {fix}")


@torch.no_grad()
def layer_inputs(decoder: AnyDecoder, tokens: Tensor, *, shift: int = 0) -> Iterator[LayerInputs]:
    """Run a model over texts, int64 (B, T), whose first token is at `shift`, and yield every layer's inputs."""
    if isinstance(decoder, Foreign):
        yield from decoder.layer_inputs(tokens, shift)
        return
    n_tokens = tokens.shape[1]
    shared = decoder.layout(tokens, torch.arange(n_tokens, device=tokens.device) + shift, starts=(shift,))
    x_BTD = decoder.embedding(tokens)
    for layer, (block, layout) in enumerate(decoder.with_layouts(shared)):
        assert isinstance(block, Block), "a decoder is made of blocks"
        q_BNTH, k_BNTH, _ = block.before(x_BTD, n_tokens)
        yield LayerInputs(layer, q_BNTH, k_BNTH, layout)
        # Only the input of the next layer is needed. A caller that stops at some layer runs none behind it.
        if layer + 1 < len(decoder.blocks):
            x_BTD = block(x_BTD, layout, None)


class LayerLogits:
    """The causal logits of one layer, as they enter softmax, for any block of queries.

    With `rounding` they are what a kernel in that dtype computes: queries and keys are rotated in float32 (or wider),
    queries scaled by the methods' logit factors, both rounded to the dtype, and their products summed in float32.
    """

    def __init__(self, inputs: LayerInputs, rounding: torch.dtype | None = None) -> None:
        self.inputs, self.rounding = inputs, rounding
        layout = inputs.layout
        self.wide = torch.promote_types(inputs.q_BNTH.dtype, torch.float32)
        self.queries = [
            self.round(layout.rotate_queries(inputs.q_BNTH, band, inputs.layer, self.wide))
            for band in range(len(layout.bands))
        ]
        self.keys = [self.round(rotation.rotate(inputs.k_BNTH)) for rotation in layout.k_rotations]

    def round(self, x: Tensor) -> Tensor:
        """Round to the kernel's dtype; the values stay in a dtype whose products are exact."""
        x = x.to(self.rounding or self.wide).to(self.wide)
        check_finite(x, f"queries and keys of layer {self.inputs.layer}")
        return x

    def blocks(self, most: int = BLOCK_LOGITS) -> list[slice]:
        """Cut the queries into blocks of at most `most` logits, at least one query each."""
        batch, heads, n_tokens, _ = self.inputs.q_BNTH.shape
        rows = max(1, most // (batch * heads * n_tokens))
        return [slice(start, min(start + rows, n_tokens)) for start in range(0, n_tokens, rows)]

    def block(self, queries: slice, keys: slice | None = None) -> Tensor:
        """Compute logits, (B, n_heads, Q, K), by default of all keys that some query sees; hidden ones are -inf."""
        keys = keys or slice(0, queries.stop)
        layout = self.inputs.layout
        logits = band_logits(self.queries, self.keys, layout, queries, keys)
        q_pos, k_pos = layout.q_pos[queries, None], layout.k_pos[None, keys]
        visible = (k_pos <= q_pos) & layout.distance.visible_pairs(q_pos, k_pos)
        if layout.mask is not None:  # of a model of transformers, such as a sliding window
            visible = visible & layout.mask[:, None, queries, keys]
        return logits.masked_fill(~visible, -torch.inf)


@torch.no_grad()
def token_scores(decoder: AnyDecoder, tokens: Tensor, targets: Tensor) -> Tensor:
    """Compute for each target its loss in nats, 1 if no other token is more likely, and its logit; all 0 without one.

    The head's logits are computed for tokens with a target only, some rows at a time, and normalised in float64.

    Shapes: tokens and targets int64 (B, T), targets below 0 where there is none -> float64 (3, B, T).
    Raises: DataError for a loss that is not finite.
    """
    flat = targets.flatten()
    scores = torch.zeros(3, len(flat), dtype=torch.float64, device=tokens.device)
    for indices, logits in scored_logits(decoder, tokens, targets >= 0):
        target_logits = logits.gather(1, flat[indices, None])[:, 0]
        is_most_likely = target_logits >= logits.amax(-1)  # which stack takes as float64
        scores[:, indices] = torch.stack([logits.logsumexp(-1) - target_logits, is_most_likely, target_logits])
    check_finite(scores, "losses")
    return scores.view(3, *targets.shape)


def scored_logits(decoder: AnyDecoder, tokens: Tensor, is_scored: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Compute the logits of some scored tokens at a time: their indices in the flat (B * T,), and float64 (n, V)."""
    rows = max(1, BLOCK_LOGITS // decoder.cfg.vocab_size)  # of the head at a time
    if isinstance(decoder, Foreign):
        for indices, logits in decoder.scored_logits(tokens, is_scored):
            # Its parts are larger than a block: converted as a whole they would take 2x their memory again.
            yield from zip(indices.split(rows), map(Tensor.double, logits.split(rows)), strict=True)
        return
    x_BTD = decoder.embedding(tokens)
    for block, layout in decoder.with_layouts(decoder.layout(tokens)):
        x_BTD = block(x_BTD, layout, None)
    hidden = x_BTD.flatten(0, 1)
    for indices in is_scored.flatten().nonzero()[:, 0].split(rows):
        yield indices, decoder.head(decoder.norm(hidden[indices])).double()
