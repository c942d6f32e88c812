"""The model and optim sections of a run's config, operations per token, and types of layers; no torch.

Layers differ by how far each sees and whether it rotates:

    full      all earlier tokens         every pair of dimensions, as in a model without types
    window    the last W tokens          every pair
    nope      all earlier tokens         none: inv_freq[j] = 0
    part      all earlier tokens         the first floor(p H / 2) pairs, of the highest frequencies; 0 for the others

Layer l has the type pattern[l mod len(pattern)]. Distance methods change full and part layers alone: window layers
keep plain distances, and nope layers have none. A frequency method changes every layer that rotates, before pairs are
set to 0. Its factor on the logits, a number for each query, applies in all layers. The key cache keeps all tokens.

A relative position is counted for a type of layer that encodes it: those below W for window, none for nope, all for
the others. The f of a run is that of the type which encodes most.

Source: arXiv:2501.18795 (RNoPE-SWA: three window layers to a nope layer); arXiv:2410.06205 (p-RoPE: part; p = 0 is
nope, p = 1 full), rounded as the transformers library's rope_type proportional. In Llama 4 (iRoPE) windows are chunks.

Sliding window: a query sees the last W tokens, itself among them, at plain distances.

    rel_pos(m, n) = i  for i < W,  hidden beyond       with i = m - n, in tokens

With W = 3 the queries at 3 and 4 see the keys 1 2 3 and 2 3 4.

Source: arXiv:2310.06825, section 2, with W as the transformers library counts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from lab.core.schema import Length, NonNegative, Positive, PositiveFloat, Section
from lab.positions import Band, Distance, Frequencies, identity
from lab.positions.method import differences
from lab.positions.regions import Near
from lab.positions.rope import Plain

if TYPE_CHECKING:
    from torch import Tensor


Kind = Literal["full", "window", "nope", "part"]


class LayersConfig(Section):
    """Types of layers, repeated over the depth."""

    pattern: tuple[Kind, ...]
    """Types of the first layers, repeated: full, window (a sliding window), nope (no positions) and part (rope on the
    highest frequencies alone), as [window, window, window, nope]."""
    window: Length | None = None
    """Tokens that window layers see, the query's own among them; below data.window."""
    fraction: Annotated[float, Gt(0), Lt(1)] | None = None
    """Share of the dimensions of a head that part layers rotate."""

    def rules(self) -> Iterator[str]:
        """Reject a pattern without effect, and parameters of types that are not in it."""
        if set(self.pattern) <= {"full"}:
            yield self.format_error("pattern", "must have a type besides full; add one, or leave model.layers out")
        for layer_type, name, value in (("window", "window", self.window), ("part", "fraction", self.fraction)):
            if layer_type in self.pattern and value is None:
                yield self.format_error(name, f"must be set for {layer_type} layers in the pattern; change one of them")
            if layer_type not in self.pattern and value is not None:
                yield self.format_error(name, f"would be ignored without {layer_type} layers in the pattern; omit it")

    def encoded(self, max_len: int) -> dict[str, int]:
        """Count the relative positions, from 0 on, that each type of layer encodes of `max_len`.

        Example:
            >>> LayersConfig(pattern=("window", "nope"), window=48).encoded(192)
            {'window': 48, 'nope': 0}
        """
        limits = {"window": min(self.window or 0, max_len), "nope": 0}
        return {layer_type: limits.get(layer_type, max_len) for layer_type in self.pattern}

    def methods(self, layer_type: str, frequencies: Frequencies, distance: Distance) -> tuple[Frequencies, Distance]:
        """Return the position methods of a type of layer in a model with these."""
        if layer_type == "full":
            return frequencies, distance
        if layer_type == "window":
            assert self.window is not None, "window layers have a window"
            return frequencies, Sliding(window=self.window)
        # Rotations by angle 0: attention needs no case for pairs without positions.
        inv_freq = frequencies.inv_freq.clone()
        if layer_type == "part":
            assert self.fraction is not None, "part layers have a fraction"
            inv_freq[int(self.fraction * len(inv_freq)) :] = 0
            return replace(frequencies, inv_freq=inv_freq), distance
        return replace(frequencies, inv_freq=0 * inv_freq), Plain(log_n=distance.log_n)


class Sliding(Distance):
    """The sliding window's parameters."""

    method: Literal["sliding"] = "sliding"
    window: Length
    """Window W in tokens."""

    @property
    def hides_pairs(self) -> bool:
        return True

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Subtract every key position from every query position; the result is nan for pairs beyond the window.

        Shapes: (Tq,), (Tk,) -> float64 (Tq, Tk).
        Example:
            >>> import torch
            >>> Sliding(window=3).rel_pos(torch.tensor([4]), torch.arange(5)).tolist()
            [[nan, nan, 2.0, 1.0, 0.0]]
        """
        rel = differences(q_pos, k_pos)
        return rel.masked_fill(rel >= self.window, float("nan"))

    @property
    def bands(self) -> tuple[Band, ...]:
        return (Band(Near(self.window), identity, identity),)


class DecoderConfig(Section, kw_only=False):
    """A Llama-family decoder (arXiv:2410.18745, A.2)."""

    d_model: Annotated[int, Ge(1), Le(2**18)]
    """Width of the residual stream."""
    n_layers: Annotated[int, Ge(1), Le(1024)]
    """Number of blocks."""
    n_heads: Annotated[int, Ge(1), Le(2**14)]
    """Query heads; must divide attention_width (default: d_model) into an even head_dim."""
    n_kv_heads: Annotated[int, Ge(1), Le(2**14)]
    """Key and value heads (grouped-query attention); must divide n_heads."""
    d_ff: Annotated[int, Ge(1), Le(2**20)]
    """Width of the SwiGLU feed-forward layer."""
    vocab_size: Annotated[int, Ge(1), Le(2**22)]
    """Rows of the embedding; default in a run's config: those of the tokenizer."""
    tie_embeddings: bool
    """Whether the output head is the embedding; no default, because it changes the number of parameters by a fifth."""
    theta: Annotated[float, Gt(0), Le(1e15)] = 10000.0
    """Rotary base."""
    norm_eps: Annotated[float, Gt(0), Le(1)] = 1e-5
    """Added to the mean square in RMSNorm."""
    embedding_std: Annotated[float, Gt(0), Le(1e6)] | None = None
    """Standard deviation of the first embedding; default: sqrt(2 / (5 d_model)). With 1.0 small models copy sooner."""
    qkv: Literal["plain", "bias", "norm"] = "plain"
    """Whether queries, keys and values have biases, as Qwen2's do, or every head's queries and keys pass an RMSNorm
    before they are rotated, as Qwen3's do."""
    attention_width: Annotated[int, Ge(1), Le(2**18)] | None = None
    """Width of all query heads together; default: d_model."""
    layers: LayersConfig | None = None
    """Layers of different types; default: all see every earlier token and rotate all dimensions."""

    def rules(self) -> Iterator[str]:
        """Check the fields against each other, with one line for each error."""
        if self.n_parameters() > 10**13:
            rule = f"makes {self.n_parameters():,} parameters, more than {10**13:,}; lower it, n_layers or d_ff"
            yield self.format_error("d_model", rule)
        field = "d_model" if self.attention_width is None else "attention_width"
        if self.width % self.n_heads:
            yield self.format_error("n_heads", f"must divide {field}={self.width}; change one of them")
        elif self.head_dim % 2:
            yield self.format_error("n_heads", f"head_dim {self.head_dim} must be even; use another number of heads")
        elif self.n_heads % self.n_kv_heads:
            yield self.format_error("n_kv_heads", f"must divide n_heads={self.n_heads}; change one of them")
        if self.layers is not None and len(self.layers.pattern) > self.n_layers:
            yield self.format_error("layers.pattern", f"must have at most n_layers={self.n_layers} types; omit some")

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject another vocabulary than the tokenizer's, and layers whose window hides nothing."""
        size = getattr(run.data.tokenizer, "vocab_size", self.vocab_size)
        if size != self.vocab_size:
            yield run.format_error("model.vocab_size", f"contradicts data.tokenizer.vocab_size={size}; leave it out")
        window = run.data.window
        # A model that a run starts from keeps its window, which probes of longer texts reach.
        if run.start is None and (getattr(self.layers, "window", None) or 0) >= window:
            yield run.format_error("model.layers.window", f"must be < data.window={window}, or hides no pair; lower it")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Type of each layer: the pattern, repeated and cut off at the last layer."""
        if self.layers is None:
            return ("full",) * self.n_layers
        return (self.layers.pattern * self.n_layers)[: self.n_layers]

    def distance_errors(self, distance: Distance) -> Iterator[str]:
        """Reject a distance method that no layer uses; nope layers use its factor alone."""
        users = {"full", "part", "nope"} if distance.is_plain else {"full", "part"}
        if distance != Plain() and not users & {*self.kinds}:
            yield distance.format_error("method", "would change nothing, as no layer is full or part; leave it out")

    @property
    def width(self) -> int:
        """Width of all query heads together."""
        return self.attention_width or self.d_model

    @property
    def head_dim(self) -> int:
        return self.width // self.n_heads

    @property
    def kv_width(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def n_matrix_parameters(self) -> int:
        """Parameters used in matrix products: every block's matrices and the output head."""
        block = self.d_model * (2 * self.width + 2 * self.kv_width + 3 * self.d_ff)
        return self.n_layers * block + self.vocab_size * self.d_model

    def n_parameters(self) -> int:
        """Count all parameters."""
        of_heads = {"plain": 0, "norm": 2 * self.head_dim, "bias": self.width + 2 * self.kv_width}[self.qkv]
        total = self.n_matrix_parameters + (2 * self.n_layers + 1) * self.d_model + self.n_layers * of_heads
        # The matrices include the head already.
        return total if self.tie_embeddings else total + self.vocab_size * self.d_model

    def flops_per_token(self, pairs_per_token: float) -> float:
        """Count the operations of one token's forward and backward pass: 6 per matrix parameter, 12 * width per
        attended pair and layer.

        Source: the usual 6N + 12 n_layers d_model T rule with T the mean number of visible keys.
        """
        return 6 * self.n_matrix_parameters + 12 * self.n_layers * self.width * pairs_per_token

    def flops_per_token_causal(self, window: int) -> int:
        """Count the operations per token with windows always full: half of `window` pairs per token and layer.

        In layers that see the last W tokens alone it is W - W^2 / (2 window) pairs.
        """
        near, share = self.window_layers(window)
        # The first W tokens of a window see 1 to W tokens, W / 2 on average, and the others W.
        pairs = (1 - share) * window / 2 + share * (near - near * near / (2 * window))
        return int(self.flops_per_token(pairs))

    def flops_per_token_full(self, window: int) -> int:
        """Count the same with hidden pairs, as other trainers do: `window` pairs per token and layer, or W.

        Source: arXiv:2204.02311, appendix B.
        """
        near, share = self.window_layers(window)
        return int(self.flops_per_token((1 - share) * window + share * near))

    def window_layers(self, window: int) -> tuple[int, float]:
        """Return how many tokens of a window the window layers see, and their share of all layers."""
        near = min(getattr(self.layers, "window", None) or window, window)
        return near, self.kinds.count("window") / self.n_layers


class OptimConfig(Section):
    """AdamW, clipping, and warm-up in steps; then the schedule (arXiv:2410.18745, A.2: cosine to a floor)."""

    lr: PositiveFloat = 3e-3
    """Highest learning rate, reached at the end of the warm-up."""
    min_lr: Annotated[float, Ge(0)] = 3e-4
    """Final learning rate of cosine and wsd."""
    warmup_steps: NonNegative = 100
    """Optimizer steps of linear warm-up."""
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """cosine over the whole run; constant; or wsd: constant, then linear decay over decay_tokens (arXiv:2404.06395)."""
    decay_tokens: Positive | None = None
    """Last part of train.tokens, over which wsd decays the learning rate to min_lr."""
    weight_decay: Annotated[float, Ge(0), Le(1000)] = 0.1
    """AdamW's decay of matrices, multiplied by the learning rate at every step."""
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """AdamW's decay of the mean gradient."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.95
    """AdamW's decay of the mean squared gradient."""
    clip_norm: PositiveFloat = 1.0
    """Largest norm of the whole gradient; a longer one is scaled to it."""

    def rules(self) -> Iterator[str]:
        """Reject a floor above the rate, and a decay without its schedule or a schedule without its decay."""
        if self.min_lr > self.lr:
            yield self.format_error("min_lr", f"must be <= lr={self.lr}; lower min_lr or raise lr")
        if self.schedule == "wsd":
            if self.decay_tokens is None:
                yield self.format_error(
                    "decay_tokens", "must be set for schedule=wsd; a tenth of train.tokens is usual"
                )
        elif self.decay_tokens is not None:
            yield self.format_error("decay_tokens", f"would be ignored with schedule={self.schedule}; remove it")

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject a warm-up that does not end before the run, or the decay; train rejects a run of less than a batch."""
        steps = run.train.steps
        if self.warmup_steps >= steps and run.train.tokens >= run.train.batch_tokens:
            rule = f"must be < {steps}, the steps of the run (train.tokens / train.batch_tokens)"
            yield run.format_error("optim.warmup_steps", f"{rule}; lower it or train longer")
        elif self.decay_steps(run.train.batch_tokens) > max(0, steps - self.warmup_steps):
            rule = f"must fit after optim.warmup_steps={self.warmup_steps} of {steps} steps; lower it or train longer"
            yield run.format_error("optim.decay_tokens", rule)

    def decay_steps(self, batch_tokens: int) -> int:
        """Return the steps of the decay, rounded up."""
        return -(-(self.decay_tokens or 0) // batch_tokens)

    def lr_at(self, step: int, total_steps: int, batch_tokens: int = 1) -> float:
        """Return the learning rate of step `step`, 0-based, of `total_steps`.

        After the warm-up, with S steps in all, W of them of the warm-up and D of the decay:

            cosine     min_lr + (lr - min_lr) * (1 + cos(pi * (step - W) / (S - W))) / 2
            constant   lr
            wsd        lr for step <= S - D, then min_lr + (lr - min_lr) * (S - step) / D

        Source: arXiv:2404.06395, section 4 (warm-up, stable, decay); arXiv:2405.18392, section 3 (linear cooldown).

        Example:
            >>> optim = OptimConfig(lr=1.0, min_lr=0.1, warmup_steps=2)
            >>> [round(optim.lr_at(step, 4), 3) for step in range(5)]
            [0.5, 1.0, 1.0, 0.55, 0.1]
            >>> wsd = replace(optim, schedule="wsd", decay_tokens=2048)
            >>> [round(wsd.lr_at(step, 6, batch_tokens=1024), 3) for step in range(7)]
            [0.5, 1.0, 1.0, 1.0, 1.0, 0.55, 0.1]
        """
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.schedule != "cosine":
            left, decay_steps = max(0, total_steps - step), self.decay_steps(batch_tokens)
            # Exactly lr before the decay, as a constant run has it: the sum may round.
            return self.lr if left >= decay_steps else self.min_lr + (self.lr - self.min_lr) * left / decay_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps))
        return self.min_lr + (self.lr - self.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))
