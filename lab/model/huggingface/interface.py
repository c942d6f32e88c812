"""Position methods inside an unmodified transformers model, through the library's attention interface.

While a method is applied, a hook on the model's rotary embedding returns the rotation by angle 0. Queries and keys then
reach the model's key cache and attention unrotated. The lab rotates them there, at the positions that the model asked
its embedding for. Of H dimensions of a head a model may rotate the first r alone, in pairs (j, j + r / 2) or
(2j, 2j + 1). The others become pairs that turn by angle 0, as do all in a layer without rotation (`use_rope`). The
visible keys come from the model's mask, including padding on the left.

A model is tried first: with its own frequencies and plain distance it must compute the same logits as by itself, but
for rounding, which is far less than what becomes of them when nothing is rotated.

Axes: B batch, T tokens, N heads, K key-value heads, H per head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lab.core.errors import ConfigError, MissingPackage, first_line
from lab.model.attention.attend import attend_layout
from lab.model.attention.layout import LayerInputs, Layout, first_ids
from lab.model.attention.segments import dense_mask
from lab.positions import Distance, Frequencies, FrequencyMethod
from lab.positions.rope import Plain, Rope

NAME = "probe_lab"
APPLIED: WeakKeyDictionary[nn.Module, Applied] = WeakKeyDictionary()  # the interface passes the layer alone
TRIED = 16  # tokens of the text by which a model is tried
ADDED = ("softcap", "s_aux", "position_bias")  # terms of other models' logits


@dataclass(frozen=True, kw_only=True)
class Own(FrequencyMethod):
    """Positions that a model encodes in a way that the lab has no method for."""

    method = "own"

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        return torch.zeros(head_dim // 2, dtype=torch.float64)


@dataclass(eq=False)
class Applied:
    """Position methods applied to one model; the layout of a forward pass is shared by its layers.

    `frequencies` are None for the model's own, `rotary` for a model that rotates nothing, or by itself. `neighbours` is
    whether pairs are (2j, 2j + 1). Each layer adds to `inputs`.
    """

    rotary: Any
    own_attention: str
    reach: int
    distance: Distance
    frequencies: Frequencies | None = None
    neighbours: bool = False
    inputs: list[LayerInputs] | None = None
    handle: Any = None
    positions: Tensor | None = None
    layouts: dict[bool, tuple[Any, ...]] = field(default_factory=dict)  # by whether a layer rotates

    def unrotated(self, rotary: Any, places: tuple[Any, ...], named: dict[str, Any], out: Any) -> tuple[Tensor, Tensor]:
        """Keep the positions of a forward pass; return cos and sin of angle 0, times the factor of own frequencies."""
        if isinstance(out, Tensor):
            raise ConfigError("rotates by complex numbers")
        cos, sin = out
        self.positions = named.get("position_ids", places[-1])
        factor = getattr(rotary, "attention_scaling", 1.0) if self.frequencies is None else 1.0
        return torch.full_like(cos, factor), torch.zeros_like(sin)

    def layout(self, q: Tensor, n_k: int, mask: Tensor | None, *, turns: bool = True) -> Layout:
        """Return the layout of a forward pass, built at the first layer that rotates and the first that does not."""
        same = (self.positions, mask)  # compared by identity
        sizes = (n_k, q.shape)
        last = self.layouts.get(turns)
        if last is None or last[1] != sizes or any(a is not b for a, b in zip(same, last[0], strict=True)):
            last = self.layouts[turns] = same, sizes, self.make(q, n_k, mask, turns)
        return last[2]

    def make(self, q: Tensor, n_k: int, mask: Tensor | None, turns: bool) -> Layout:
        """Compute the keys' positions and build the layout."""
        n_q = q.shape[2]
        seen = None  # by order alone
        if mask is not None:
            seen = mask if mask.dtype == torch.bool else mask == 0  # transformers' eager masks are added to logits
            seen = seen[:, 0, :, :n_k]
            if bool((seen == dense_mask(n_q, n_k, q.device)).all()):
                seen = None
        q_pos = torch.arange(n_k - n_q, n_k, device=q.device) if self.positions is None else self.positions
        q_pos = q_pos[0] if q_pos.ndim > 1 and len(q_pos) == 1 else q_pos
        k_pos = q_pos
        if n_q != n_k:  # the last query's position, counted back over the keys that it sees
            last = torch.ones(1, n_k, device=q.device) if seen is None else seen[:, -1]
            places = last.long().cumsum(-1) - 1
            k_pos = places - places[:, -1:] + torch.atleast_2d(q_pos)[:, -1:]
        starts = None
        if seen is None and torch.equal(torch.atleast_2d(q_pos), torch.atleast_2d(k_pos)[:, n_k - n_q :]):
            starts = first_ids(k_pos, None)
        method = (self.frequencies or own_frequencies(self.rotary)).at_length(k_pos.shape[-1])
        turning = nn.functional.pad(method.inv_freq, (0, q.shape[3] // 2 - len(method.inv_freq)))
        method = Frequencies(method.config, method.theta, turning * turns)
        return Layout(q_pos, k_pos, method, self.distance, q.dtype, starts=starts, mask=seen)


def own_frequencies(rotary: Any, theta: float = 1.0, head_dim: int = 0) -> Frequencies:
    """Return a model's own inverse frequencies, with any scaling; zeros where it rotates nothing."""
    if rotary is None:
        return Frequencies(Own(), theta, Own().inv_freq(head_dim, theta))
    is_plain = getattr(rotary, "rope_type", "default") == "default"
    return Frequencies(Rope() if is_plain else Own(), theta, rotary.inv_freq.detach().double().cpu())


def find_rotary(model: nn.Module) -> Any:
    """Find the rotary embedding of a transformers model; None where it has none, or several."""
    rotaries = [module for module in model.modules() if isinstance(getattr(module, "inv_freq", None), Tensor)]
    return rotaries[0] if len(rotaries) == 1 else None


def apply(
    model: Any,
    *,
    distance: Distance | None = None,
    frequencies: Frequencies | None = None,
    inputs: list[LayerInputs] | None = None,
) -> Any:
    """Run position methods inside a transformers model from now on, and return the model.

    The weights and the code of the model stay as they are; applying plain distance removes the methods again. With
    `inputs` the lab attends under any methods, and adds the inputs of every layer's attention to the list.

    Raises: ConfigError for a model whose attention or rotary embedding is of another kind; MissingPackage.
    Example:
        model = apply(AutoModelForCausalLM.from_pretrained(folder), distance=distance("string", shift=683))
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ModuleNotFoundError as error:
        raise MissingPackage("transformers", "lab.model.huggingface.apply", "hf") from error
    distance = distance or Plain()
    changed = not distance.is_plain or distance.scales_logits or frequencies is not None
    remove(model)  # or a second call would compare the lab's attention with itself
    if not changed and inputs is None:
        return model
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, stated_mask)
    rotary = find_rotary(model)
    fault = "has no rotary embedding that all layers share" if rotary is None and changed else try_out(model, rotary)
    if fault is not None and rotary is not None and not changed:
        fault = try_out(model, None)  # its own rotation, and the lab's attention
    if fault is not None:
        remove(model)
        remedy = " with other positions; leave them out" if changed else "; use another model"
        raise ConfigError(f"model={type(model).__name__}: {fault}; the lab cannot compute its attention{remedy}")
    if frequencies is not None and len(frequencies.inv_freq) != len(rotary.inv_freq):
        remove(model)
        rule = f"must be {2 * len(rotary.inv_freq)}, the dimensions that the model rotates; build them with it"
        raise ConfigError(f"frequencies.head_dim={2 * len(frequencies.inv_freq)}: {rule}")
    applied = APPLIED[model]
    applied.distance, applied.frequencies, applied.inputs, applied.layouts = distance, frequencies, inputs, {}
    return model


def remove(model: Any) -> None:
    """Let a model compute its attention by itself again."""
    applied = APPLIED.get(model)
    if applied is not None:
        applied.handle.remove()
        model.set_attn_implementation(applied.own_attention)
    for module in model.modules():
        APPLIED.pop(module, None)


def try_out(model: Any, rotary: Any) -> str | None:
    """Let the lab attend in a model, under the model's own method; return what differs then."""
    from transformers.utils import logging

    remove(model)
    reach = getattr(model.config, "max_position_embeddings", None) or 0
    applied = Applied(rotary, model.config._attn_implementation, reach, Plain(), inputs=[])
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers warns of what the returned line says
    try:
        before = compute_logits(model)
        applied.handle = (rotary or nn.Identity()).register_forward_hook(applied.unrotated, with_kwargs=True)
        APPLIED.update(dict.fromkeys(model.modules(), applied))
        model.set_attn_implementation(NAME)
        apart, applied.neighbours = min(difference(model, before, applied, pairs) for pairs in (False, True))
        turning = own_frequencies(rotary).inv_freq
        applied.frequencies = Frequencies(Own(), 1.0, 0 * turning)
        effect, _ = difference(model, before, applied, applied.neighbours)  # of rotation, small before training
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, ConfigError) as error:
        return first_line(error)
    finally:
        logging.set_verbosity(verbosity)
    # The model and the lab may differ by rounding alone. Before training a rotation changes logits little, so that the
    # bound is a part of its effect; without a rotation it is relative to the logits.
    eps = torch.finfo(before.dtype).eps
    most = eps**0.5 * float(before.abs().max()) if rotary is None else eps**0.25 * effect
    if not applied.inputs:
        return "attends by code of its own, not by transformers' attention interface"
    return None if apart <= most else "rotates or attends in another way"


def difference(model: Any, before: Tensor, applied: Applied, neighbours: bool) -> tuple[float, bool]:
    """Compute the largest change of a logit by the lab's attention with either kind of pairs, and return the kind."""
    applied.neighbours, applied.layouts = neighbours, {}
    return float((compute_logits(model) - before).abs().max()), neighbours


@torch.no_grad()
def compute_logits(model: Any) -> Tensor:
    """Compute the logits of the short text by which a model is tried, (1, TRIED, V)."""
    tokens = torch.arange(TRIED, device=model.device)[None] % model.config.get_text_config().vocab_size
    out: Tensor = model(tokens, use_cache=False).logits
    return out


def stated_mask(*, q_length: int, kv_length: int, **settings: Any) -> Tensor | None:
    """Build transformers' boolean mask, left out only where it is causal over as many keys as queries.

    The library also leaves it out for single queries and for caches of fixed size, whose unfilled slots its own kernel
    call hides.
    """
    from transformers.masking_utils import sdpa_mask

    settings["allow_is_causal_skip"] = q_length == kv_length
    return sdpa_mask(q_length=q_length, kv_length=kv_length, **settings)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend for one layer, with the interface's signature: (B, N, Tq, H) and (B, K, Tk, H) to (B, Tq, N, H).

    Raises: ConfigError for a layer that `apply` was not called for, and for attention with other parts.
    """
    applied = APPLIED.get(module)
    if applied is None:
        raise ConfigError(f"attn_implementation={NAME}: set without a method; call lab.model.huggingface.apply")
    n_k, width = key.shape[2:]
    window = more.get("sliding_window")
    slides = applied.rotary is not None and window is not None and window < max(applied.reach, n_k)  # moved keys
    faults = ["attention_dropout"] * bool(dropout) + ["sliding_window"] * slides
    if faults := faults + [name for name in ADDED if more.get(name) is not None]:
        raise ConfigError(f"attends with {', '.join(faults)}")
    layout = applied.layout(query, n_k, attention_mask, turns=bool(getattr(module, "use_rope", True)))
    n_rotated = 0 if applied.rotary is None else 2 * len(applied.rotary.inv_freq)
    query, key = (by_halves(x, n_rotated, applied.neighbours) for x in (query, key))
    if scaling not in (None, width**-0.5):
        query = query * (scaling * width**0.5)
    if applied.inputs is not None:
        applied.inputs.append(LayerInputs(len(applied.inputs), query, key, layout))
    layer: Any = getattr(module, "layer_idx", 0)
    out = attend_layout(query, key, value, layout, layer=layer, backend="auto")
    return out.transpose(1, 2).contiguous(), None


def by_halves(x: Tensor, n_rotated: int, neighbours: bool = False) -> Tensor:
    """Move the second dimensions of the rotated pairs to the second half of each head.

    Example:
        >>> by_halves(torch.arange(8), 4).tolist(), by_halves(torch.arange(8), 4, neighbours=True).tolist()
        ([0, 1, 4, 5, 2, 3, 6, 7], [0, 2, 4, 5, 1, 3, 6, 7])
    """
    if neighbours:
        turned = x[..., :n_rotated].unflatten(-1, (-1, 2)).mT.flatten(-2)
        x = torch.cat([turned, x[..., n_rotated:]], dim=-1)
    if n_rotated in (0, x.shape[-1]):
        return x
    turned, still = (part.chunk(2, dim=-1) for part in (x[..., :n_rotated], x[..., n_rotated:]))
    return torch.cat([turned[0], still[0], turned[1], still[1]], dim=-1)
