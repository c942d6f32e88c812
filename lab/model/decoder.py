"""The decoder of arXiv:2410.18745, A.2: RMSNorm, SwiGLU, RoPE, grouped-query attention. A plain nn.Module.

Axes: B batch, T tokens, N heads, K key-value heads, H per head, D model, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from lab import positions
from lab.core.errors import ConfigError, DataError
from lab.model.attention.layout import KeyCache, Layout, first_ids
from lab.model.attention.segments import ContextGroup, Segments
from lab.model.block import Block, compile_block
from lab.model.config import DecoderConfig, OptimConfig
from lab.model.devices import Linear
from lab.model.loss import summed_cross_entropy, target_losses

__all__ = ["Decoder", "DecoderConfig"]


class Head(Linear):
    """The projection to the vocabulary; FSDP gathers its weights for losses as for logits."""

    def forward(
        self, x: Tensor, targets: Tensor | None = None, loss_weights: Tensor | None = None, *, summed: bool = True
    ) -> Tensor:
        """Compute the logits, or with targets the loss, for which all logits never exist at once."""
        if targets is None:
            return super().forward(x)
        hidden_TD, targets_T = x.flatten(0, 1), targets.flatten()
        if not summed:
            return target_losses(hidden_TD, self.weight, targets_T)
        weights_T = None if loss_weights is None else loss_weights.flatten()
        return summed_cross_entropy(hidden_TD, self.weight, targets_T, weights_T)


class Decoder(nn.Module):
    """The language model; positions come from `frequencies` and `distance`, RoPE at cfg.theta and plain by default.

    Without a `seed` the weights stay as torch initialises them, for callers that load weights. With `recompute` the
    backward pass recomputes each block's activations and keeps none. With a `compiler`, a backend of torch.compile,
    packed rows train by graphs that serve all blocks and packs.
    """

    def __init__(
        self,
        cfg: DecoderConfig,
        *,
        frequencies: positions.Frequencies | None = None,
        distance: positions.Distance | None = None,
        backend: str = "auto",
        seed: int | None = 0,
        recompute: bool = False,
        compiler: Any = None,
    ) -> None:
        super().__init__()
        self.cfg, self.backend, self.recompute = cfg, backend, recompute
        self.frequencies = frequencies or positions.frequencies("rope", head_dim=cfg.head_dim, theta=cfg.theta)
        self.distance = distance or positions.distance("plain")
        self.embedding = nn.Embedding(cfg.vocab_size, cfg.d_model)
        graphs = None if compiler is None else compile_block(compiler)
        self.blocks = nn.ModuleList(Block(cfg, layer, backend, graphs) for layer in range(cfg.n_layers))
        self.norm = nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.head = Head(cfg.d_model, cfg.vocab_size, bias=False)
        if cfg.tie_embeddings:
            self.head.weight = self.embedding.weight
        if seed is not None:
            self.reset_parameters(torch.Generator().manual_seed(seed))

    @property
    def distance(self) -> positions.Distance:
        """The distance method of full and part layers."""
        return self._distance

    @distance.setter
    def distance(self, method: positions.Distance) -> None:
        for error in self.cfg.distance_errors(method):
            raise ConfigError(f"distance.{error}")
        self._distance = method

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Sample weights: normal, std sqrt(2 / (5 d_model)); residual outputs 1 / (sqrt(fan_in) n_layers); biases 0.

        The embedding takes cfg.embedding_std if it is set.

        Source: the TinyLlama project's initialisation, which arXiv:2410.18745 A.2 builds on.
        """
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:  # a norm's scale, or a bias of 0
                nn.init.constant_(parameter, float(not name.endswith(".bias")))
                continue
            std = math.sqrt(2 / (5 * self.cfg.d_model))
            if name.endswith("out.weight"):  # added to the residual stream
                std = 1 / (math.sqrt(parameter.shape[1]) * self.cfg.n_layers)
            elif name == "embedding.weight" and self.cfg.embedding_std:
                std = self.cfg.embedding_std
            nn.init.normal_(parameter, std=std, generator=generator)

    def forward(
        self,
        tokens: Tensor,
        cu_seqlens: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        segments: Segments | None = None,
        starts: Sequence[int] | None = None,
        cache: KeyCache | None = None,
        context: ContextGroup | None = None,
        targets: Tensor | None = None,
        loss_weights: Tensor | None = None,
        summed: bool = True,
        last_only: bool = False,
    ) -> Tensor:
        """Return logits, or the loss when `targets` are given: the sum, or with summed=False that of each target.

        With `cu_seqlens` (or `segments`, the same prepared on the host) the B * T tokens are one packed row: a token
        sees its own segment only, ids restart at 0 in each, and tokens after the last segment are padding. `starts`
        contains the first id of each segment if ids count up by one, and is empty if they do not; by default ids are
        inspected. With a cache the tokens follow the cached ones. `last_only` returns the logits of the last token, and
        the last block computes no others. The ranks of a `context` group pass the same rows, and each returns the
        logits or losses, or their sum, of its own part of the tokens.

        Shapes: tokens int64 (B, T); cu_seqlens int32 (S + 1,); position_ids int64 (T,) or (B, T); targets int64
            (B, T), IGNORE where not scored; loss_weights (B, T); returns (B, T, V), or a scalar: the sum of losses in
            nats; with loss weights (2,), the weighted sum and the plain one, which has no gradient; not summed, (B, T).
        Raises: DataError for cu_seqlens that do not describe the tokens.
        """
        shape = tokens.shape
        if cu_seqlens is not None and segments is None:
            segments = Segments.from_cu_seqlens(cu_seqlens, tokens.numel())
        if segments is not None:
            if cache is not None or segments.n_tokens != tokens.numel():
                raise DataError(f"segments of {segments.n_tokens} tokens: must match tokens {tuple(shape)}, no cache")
            tokens = tokens.reshape(1, -1)
            if position_ids is not None:
                position_ids = position_ids.expand(shape).reshape(1, -1)
        layout = self.layout(tokens, position_ids, segments, starts, cache)
        n_tokens = tokens.shape[1]
        if context is not None:
            assert (cache, last_only) == (None, False), "a group trains, it does not generate"
            # The layout keeps ids and segments of the full row, and only hidden states are this rank's part of it:
            # attention exchanges tokens for heads.
            layout = replace(layout, context=context)
            targets, loss_weights = (
                None if x is None else context.local_part(x.reshape(tokens.shape)) for x in (targets, loss_weights)
            )
            tokens = context.local_part(tokens)
            shape = tokens.shape
        x_BTD = self.embedding(tokens)
        blocks = self.with_layouts(layout)
        # Every block but the last needs all tokens, because their hidden states become keys of the next block.
        if last_only and segments is None and n_tokens > 1:
            block, last_layout = blocks[-1]
            blocks[-1] = block, replace(last_layout, q_pos=last_layout.q_pos[..., -1:])
        for block, block_layout in blocks:
            if self.recompute and torch.is_grad_enabled():
                x_BTD = checkpoint(block, x_BTD, block_layout, cache, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, block_layout, cache)
        if cache is not None:
            cache.length += n_tokens
        if last_only:
            x_BTD = x_BTD[:, -1:]
        x_BTD = self.norm(x_BTD)
        if targets is not None:
            losses: Tensor = self.head(x_BTD, targets, loss_weights, summed=summed)
            return losses if summed else losses.view(shape)
        logits: Tensor = self.head(x_BTD)
        return logits if last_only else logits.view(*shape, -1)

    def layout(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        segments: Segments | None = None,
        starts: Sequence[int] | None = None,
        cache: KeyCache | None = None,
    ) -> Layout:
        """Prepare ids, rotations and segments once for all layers."""
        past = n_rotated = 0
        if cache is not None:
            past = cache.length
            n_rotated = past if cache.n_maps else 0
        frequencies = self.frequencies
        if position_ids is not None:
            assert past == 0, "explicit ids cannot continue a cache"
            k_pos = position_ids
            # Plain distance needs none: order in the row decides who sees whom. The check would wait for the GPU.
            if starts is None and not (self.distance.is_plain and self.cfg.layers is None):
                starts = first_ids(k_pos, segments)
        elif segments is not None:
            k_pos = segments.position_ids
            starts = (0,) * len(segments.lengths)
        else:
            k_pos = torch.arange(past + tokens.shape[1], device=tokens.device)
            starts = (0,)
        if segments is None:  # the length of a text, which a packed row of several does not have
            frequencies = frequencies.at_length(k_pos.shape[-1])
        return Layout(
            k_pos[past:] if past else k_pos,
            k_pos,
            frequencies,
            self.distance,
            self.embedding.weight.dtype,
            segments=segments,
            starts=tuple(starts) if starts else None,
            n_rotated=n_rotated,
        )

    def with_layouts(self, layout: Layout) -> list[tuple[nn.Module, Layout]]:
        """Pair every block with the layout for its type, which the layers of one type share."""
        if self.cfg.layers is None:
            return [(block, layout) for block in self.blocks]
        layouts = {}
        for layer_type in {*self.cfg.kinds}:
            frequencies, distance = self.cfg.layers.methods(layer_type, layout.frequencies, layout.distance)
            layouts[layer_type] = replace(layout, frequencies=frequencies, distance=distance)
        return [(block, layouts[layer_type]) for block, layer_type in zip(self.blocks, self.cfg.kinds, strict=True)]

    def new_cache(self, batch: int, max_tokens: int) -> KeyCache:
        """Create an empty key cache for `batch` rows of up to `max_tokens` tokens."""
        n_maps = len({band.k_map for band in self.distance.bands})
        if self.backend == "reference" or self.frequencies.is_dynamic:  # keys are rotated at every step
            n_maps = 0
        return KeyCache(self.cfg, batch, max_tokens, self.embedding.weight.device, n_maps=n_maps)


def make_optimizer(decoder: Decoder, optim: OptimConfig) -> Optimizer:
    """Create AdamW, which decays matrices alone."""
    # A checkpoint stores the optimizer's state in the order of these groups.
    groups: list[Any] = [{"params": [], "weight_decay": optim.weight_decay}, {"params": [], "weight_decay": 0.0}]
    for parameter in decoder.parameters():
        groups[parameter.ndim == 1]["params"].append(parameter)
    return AdamW(groups, lr=optim.lr, eps=1e-8, betas=(optim.beta1, optim.beta2), fused=True)
