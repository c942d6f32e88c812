"""Distance methods inside an unmodified transformers model, through the library's attention interface.

The model passes queries and keys rotated by their own positions p. A band with query map a and key map b rotates
queries by another a(p) - p and keys by b(p) - p: rotations of one pair add up. Keys of an identity map stay unchanged,
so the model's own key cache can be used. The visible keys come from the model's attention mask, including padding on
the left.

Axes: B batch, T tokens, N heads, K key-value heads, H per head.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lab.errors import ConfigError, MissingPackage
from lab.model.attention.attend import attend_layout
from lab.model.attention.layout import Layout, PositionMap, Rotation, first_ids
from lab.model.attention.segments import dense_mask
from lab.positions import Band, Distance, Frequencies, identity
from lab.positions import frequencies as make_frequencies

NAME = "probe_lab"
UNSERVED = ("softcap", "s_aux")  # what a model passes to its attention that changes the result: Gemma 2, GPT-OSS
APPLIED: WeakKeyDictionary[nn.Module, Applied] = WeakKeyDictionary()  # the interface passes the layer alone


class ExtraRotation:
    """A distance method for queries and keys that are rotated by their own positions already; otherwise as `own`."""

    def __init__(self, own: Distance) -> None:
        bands = own.bands
        places = (place for band in bands for place in (band.q_map, band.k_map))
        maps = {place: extra_rotation(place) for place in places}  # bands share key maps
        self.own = own
        self.bands = tuple(Band(band.region, maps[band.q_map], maps[band.k_map]) for band in bands)

    def __getattr__(self, name: str) -> Any:
        """Return what the rotation leaves as it is."""
        return getattr(self.own, name)


def extra_rotation(place: PositionMap) -> PositionMap:
    """Return the map to the remaining rotation of a token that is rotated by its own position."""
    return no_rotation if place is identity else lambda positions: place(positions) - positions


def no_rotation(positions: Tensor) -> Tensor:
    """Return zero for every token."""
    return positions * 0


@dataclass(eq=False)
class Applied:
    """A distance method applied to one model; the layout of the last forward pass is shared by all its layers."""

    distance: Any
    rotary: Any
    scaling: float
    last: tuple[Any, ...] = ()

    def layout(self, q: Tensor, n_k: int, mask: Tensor | None, position_ids: Tensor | None) -> Layout:
        """Return the layout of a forward pass, built at its first layer."""
        same = (position_ids, mask, self.rotary.inv_freq)  # compared by identity
        sizes = (n_k, q.shape)
        if not self.last or self.last[1] != sizes or any(a is not b for a, b in zip(same, self.last[0])):
            self.last = same, sizes, self.make(q, n_k, mask, position_ids)
        made: Layout = self.last[2]
        return made

    def make(self, q: Tensor, n_k: int, mask: Tensor | None, position_ids: Tensor | None) -> Layout:
        """Compute the keys' positions and build the layout; q and k already contain the frequencies' own factor."""
        n_q = q.shape[2]
        causal = dense_mask(n_q, n_k, q.device)
        if mask is None:
            seen = causal
        else:
            seen = mask if mask.dtype == torch.bool else mask == 0  # transformers' eager masks are added to logits
            seen = seen[:, 0, :, :n_k]
        by_order = bool((seen == causal).all())
        q_pos = torch.arange(n_k - n_q, n_k, device=q.device) if position_ids is None else position_ids
        k_pos = q_pos
        if n_q != n_k:  # the last query's position, counted back over the keys that it sees
            places = seen[:, -1].long().cumsum(-1) - 1
            k_pos = places - places[:, -1:] + torch.atleast_2d(q_pos)[:, -1:]
        starts = None
        if by_order and torch.equal(torch.atleast_2d(q_pos), torch.atleast_2d(k_pos)[:, n_k - n_q :]):
            starts = first_ids(k_pos, None)
        frequencies = own_frequencies(self.rotary)
        given = None if by_order else seen
        return Layout(q_pos, k_pos, frequencies, self.distance, q.dtype, starts=starts, mask=given)


def own_frequencies(rotary: Any) -> Frequencies:
    """Return a model's own inverse frequencies, with any scaling."""
    inv_freq = rotary.inv_freq.detach().double().cpu()
    plain = make_frequencies("rope", head_dim=2 * len(inv_freq))
    return Frequencies(plain.config, plain.theta, inv_freq)


def apply(model: Any, *, distance: Distance) -> Any:
    """Run a distance method inside a transformers model from now on, and return the model.

    The weights and the code of the model stay as they are; applying plain distance removes the method again.

    Raises: ConfigError for a model whose attention or rotary embedding is of another kind; MissingPackage.
    Example:
        model = apply(AutoModelForCausalLM.from_pretrained(folder), distance=distance("string", shift=683))
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ModuleNotFoundError as error:
        raise MissingPackage("transformers", "lab.model.huggingface.apply", "hf") from error
    layers = [module for module in model.modules() if hasattr(module, "q_proj") and hasattr(module, "layer_idx")]
    rotaries = [module for module in model.modules() if hasattr(module, "inv_freq")]
    kind = type(model).__name__
    if not layers or len(rotaries) != 1:
        raise ConfigError(
            f"model={kind}: has {len(layers)} attention layers with q_proj and {len(rotaries)} rotary embeddings; "
            "apply needs a Llama-family model of transformers, with one rotary embedding for all layers"
        )
    head_dim, n_rotated = layers[0].head_dim, 2 * len(rotaries[0].inv_freq)
    everywhere = n_rotated == head_dim and all(getattr(layer, "use_rope", True) for layer in layers)
    if not everywhere or not rotates_halves(layers[0], rotaries[0]):
        raise ConfigError(
            f"model={kind}: rotates {n_rotated} of {head_dim} dimensions, leaves layers unrotated, or pairs dimensions "
            f"otherwise than j with j + {head_dim // 2}; apply needs a model that rotates every layer as Llama does"
        )
    general = getattr(model.config, "sliding_window", None)
    sliding = [getattr(layer, "sliding_window", general) for layer in layers]
    if any(sliding):
        raise ConfigError(
            f"model={kind}: sliding_window={max(filter(None, sliding))}: a sliding window hides keys that a distance "
            "method moves; load the model with sliding_window=None"
        )
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, stated_mask)
    applied = Applied(ExtraRotation(distance), rotaries[0], head_dim**-0.5)
    for layer in layers:
        APPLIED[layer] = applied
    model.set_attn_implementation(NAME)
    return model


def rotates_halves(layer: nn.Module, rotary: Any) -> bool:
    """Try whether a model's own rotation pairs dimension j with j + head_dim / 2, as the extra rotation does."""
    rotate = getattr(sys.modules[type(layer).__module__], "apply_rotary_pos_emb", None)
    if rotate is None:
        return False
    half = torch.ones_like(rotary.inv_freq, dtype=torch.float32)
    row, place = torch.cat([half, 2 * half])[None, None, None], torch.ones(1, 1, dtype=torch.long, device=half.device)
    found, _ = rotate(row, row, *rotary(row, place))
    own = Rotation.of(place, own_frequencies(rotary).inv_freq, torch.float32).rotate(row)
    return torch.allclose(found.float(), own * getattr(rotary, "attention_scaling", 1.0), atol=1e-3)


def stated_mask(*, q_length: int, kv_length: int, **settings: Any) -> Tensor | None:
    """Build transformers' boolean mask, left out only where it is causal over as many keys as queries.

    The library also leaves it out for single queries and for caches of fixed size, whose unfilled slots its own kernel
    call hides.
    """
    from transformers.masking_utils import sdpa_mask

    settings["allow_is_causal_skip"] = q_length == kv_length
    mask: Tensor | None = sdpa_mask(q_length=q_length, kv_length=kv_length, **settings)
    return mask


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_ids: Tensor | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """Attend for one layer, with the interface's signature: rotated (B, N, Tq, H) and (B, K, Tk, H) to (B, Tq, N, H).

    Raises: ConfigError for a layer that `apply` was not called for, and for dropout.
    """
    applied = APPLIED.get(module)
    if applied is None:
        raise ConfigError(f"attn_implementation={NAME}: set without a method; call lab.model.huggingface.apply")
    if dropout:
        raise ConfigError(f"attention_dropout={dropout}: distance methods have none; set it to 0")
    unserved = [name for name in UNSERVED if ignored.get(name) is not None]
    if unserved:
        raise ConfigError(
            f"{unserved[0]}: changes the model's attention, distance methods leave it out; use another model"
        )
    layout = applied.layout(query, key.shape[2], attention_mask, position_ids)
    if scaling is not None and scaling != applied.scaling:
        query = query * (scaling / applied.scaling)
    out = attend_layout(query, key, value, layout, layer=0, backend="auto")
    return out.transpose(1, 2).contiguous(), None
