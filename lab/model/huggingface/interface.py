"""Distance methods inside an unmodified transformers model, through the library's attention interface.

The model passes queries and keys rotated by their own positions p. A band with query map a and key map b rotates
queries by another a(p) - p and keys by b(p) - p: rotations of one pair add up. Keys of an identity map stay unchanged,
so the model's own key cache can be used. The visible keys come from the model's attention mask, including padding on
the left.

Axes: B batch, T tokens, N heads, K key-value heads, H per head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lab.errors import ConfigError, MissingPackage
from lab.model.attention.attend import attend_layout
from lab.model.attention.layout import Layout, PositionMap, first_ids
from lab.model.attention.segments import dense_mask
from lab.model.huggingface.config import FAMILIES
from lab.positions import Band, Distance, Frequencies
from lab.positions import frequencies as make_frequencies

NAME = "probe_lab"
APPLIED: WeakKeyDictionary[nn.Module, Applied] = WeakKeyDictionary()  # the interface passes the layer alone


class ExtraRotation:
    """A distance method for queries and keys that are rotated by their own positions already; otherwise as `own`."""

    def __init__(self, own: Distance) -> None:
        bands = own.bands
        places = (place for band in bands for place in (band.q_map, band.k_map))
        maps = {place: partial(extra_rotation, place) for place in places}  # bands share key maps
        self.own = own
        self.bands = tuple(Band(band.region, maps[band.q_map], maps[band.k_map]) for band in bands)

    def __getattr__(self, name: str) -> Any:
        """Return what the rotation leaves as it is."""
        return getattr(self.own, name)


def extra_rotation(place: PositionMap, positions: Tensor) -> Tensor:
    """Return the remaining rotation of tokens that are rotated by their own positions."""
    return place(positions) - positions


@dataclass(eq=False)
class Applied:
    """A distance method applied to one model; the layout of the last forward pass is shared by all its layers."""

    distance: Any
    rotary: Any
    last: tuple[Any, ...] = ()

    def layout(self, q: Tensor, n_k: int, mask: Tensor | None, position_ids: Tensor | None) -> Layout:
        """Return the layout of a forward pass, built at its first layer."""
        same = (position_ids, mask, self.rotary.inv_freq)  # compared by identity
        sizes = (n_k, q.shape)
        if not self.last or self.last[1] != sizes or any(a is not b for a, b in zip(same, self.last[0])):
            self.last = same, sizes, self.make(q, n_k, mask, position_ids)
        return self.last[2]

    def make(self, q: Tensor, n_k: int, mask: Tensor | None, position_ids: Tensor | None) -> Layout:
        """Compute the keys' positions and build the layout; q and k already contain the frequencies' own factor."""
        n_q = q.shape[2]
        seen = None  # by order alone
        if mask is not None:
            seen = mask if mask.dtype == torch.bool else mask == 0  # transformers' eager masks are added to logits
            seen = seen[:, 0, :, :n_k]
            if bool((seen == dense_mask(n_q, n_k, q.device)).all()):
                seen = None
        q_pos = torch.arange(n_k - n_q, n_k, device=q.device) if position_ids is None else position_ids
        k_pos = q_pos
        if n_q != n_k:  # the last query's position, counted back over the keys that it sees
            last = torch.ones(1, n_k, device=q.device) if seen is None else seen[:, -1]
            places = last.long().cumsum(-1) - 1
            k_pos = places - places[:, -1:] + torch.atleast_2d(q_pos)[:, -1:]
        starts = None
        if seen is None and torch.equal(torch.atleast_2d(q_pos), torch.atleast_2d(k_pos)[:, n_k - n_q :]):
            starts = first_ids(k_pos, None)
        return Layout(q_pos, k_pos, own_frequencies(self.rotary), self.distance, q.dtype, starts=starts, mask=seen)


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
    family = model.config.model_type
    layers = [module for module in model.modules() if hasattr(module, "q_proj") and hasattr(module, "layer_idx")]
    rotary: Any = next((module for module in model.modules() if hasattr(module, "inv_freq")), None)
    general = getattr(model.config, "sliding_window", None)
    slides = any(getattr(layer, "sliding_window", general) for layer in layers)  # hides keys that a method moves
    if family not in FAMILIES or slides or 2 * len(rotary.inv_freq) != layers[0].head_dim:
        raise ConfigError(
            f"model={type(model).__name__}: must be of the family {', '.join(FAMILIES)}, rotate all dimensions of a "
            "head and have no sliding window; load it with sliding_window=None, or use another model"
        )
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, stated_mask)
    applied = Applied(ExtraRotation(distance), rotary)
    for layer in layers:
        APPLIED[layer] = applied
    model.set_attn_implementation(NAME)
    return model


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
    layout = applied.layout(query, key.shape[2], attention_mask, position_ids)
    out = attend_layout(query, key, value, layout, layer=0, backend="auto")
    return out.transpose(1, 2).contiguous(), None
