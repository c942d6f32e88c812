"""Position methods inside an unmodified transformers model, through the library's attention interface.

While a method is applied, a hook on the model's rotary embedding returns the rotation by angle 0. Queries and keys then
reach the model's key cache and attention unrotated. The lab rotates them there, at the positions that the model passed
to its embedding. Of H dimensions of a head a model may rotate the first r alone, in pairs (j, j + r / 2) or
(2j, 2j + 1). The others become pairs that rotate by angle 0, as do all in a layer without rotation (`use_rope`). The
visible keys come from the model's mask, including padding on the left.

A model is tried first: with its own frequencies and plain distance the lab must compute the model's own logits. Only
rounding may differ, which is far less than the effect of rotating nothing.

Axes: B batch, T tokens, N heads, K key-value heads, H per head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lab.core.errors import ConfigError, first_line
from lab.model.attention.attend import attend_layout
from lab.model.attention.layout import LayerInputs, Layout, first_ids
from lab.model.attention.segments import dense_mask
from lab.positions import Distance, Frequencies, FrequencyMethod
from lab.positions.rope import Plain, Rope

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "probe_lab"
APPLIED: WeakKeyDictionary[nn.Module, Applied] = WeakKeyDictionary()  # the interface passes the layer alone


class Own(FrequencyMethod):
    """Positions that a model encodes in a way that the lab has no method for."""

    method = "own"

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        return torch.zeros(head_dim // 2, dtype=torch.float64)


@dataclass(eq=False)
class Applied:
    """Position methods applied to one model; the layout of a forward pass is shared by its layers.

    `frequencies` are None for the model's own. `rotary` is None for a model that rotates nothing, or by itself. With
    `neighbours` pairs are (2j, 2j + 1). Each layer adds to `inputs`.
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
    layouts: dict[bool, tuple[Any, ...]] = field(default_factory=dict)  # by whether a layer rotates: keys and layout

    def return_unrotated(self, rotary: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """Keep the positions of a forward pass; return cos and sin of angle 0, times the factor of own frequencies."""
        if isinstance(out, Tensor):
            raise ConfigError("rotates by complex numbers")
        self.positions = kwargs.get("position_ids", args[-1])
        factor = getattr(rotary, "attention_scaling", 1.0) if self.frequencies is None else 1.0
        return torch.full_like(out[0], factor), torch.zeros_like(out[1])

    def layout(self, q: Tensor, n_k: int, mask: Tensor | None, *, rotates: bool) -> Layout:
        """Return the layout of a forward pass, built at the first layer that rotates and the first that does not."""
        sizes = (n_k, q.shape)
        last = self.layouts.get(rotates)
        # Tensors of a forward pass are compared by identity: their values would have to be read from a GPU.
        if last is None or last[0] is not self.positions or last[1] is not mask or last[2] != sizes:
            last = self.layouts[rotates] = self.positions, mask, sizes, self.build_layout(q, n_k, mask, rotates)
        return last[3]

    def build_layout(self, q: Tensor, n_k: int, mask: Tensor | None, rotates: bool) -> Layout:
        """Compute the keys' positions and build the layout."""
        n_q = q.shape[2]
        visible = None  # by order alone
        if mask is not None:
            seen = mask[:, 0, :, :n_k]
            seen = seen if mask.dtype == torch.bool else seen == 0  # transformers' eager masks are added to logits
            if (seen != dense_mask(n_q, n_k, q.device)).any():
                visible = seen
        q_pos = torch.arange(n_k - n_q, n_k, device=q.device) if self.positions is None else self.positions
        if q_pos.ndim > 1 and len(q_pos) == 1:
            q_pos = q_pos[0]
        k_pos = q_pos
        if n_q != n_k:
            # Positions of cached keys are not stored. The keys that the last query sees have consecutive positions
            # that end with its own; those in between, such as padding on the left, count as no step.
            steps = (torch.ones(1, n_k, device=q.device) if visible is None else visible[:, -1]).long().cumsum(-1)
            k_pos = steps - steps[:, -1:] + torch.atleast_2d(q_pos)[:, -1:]
        starts = None
        if visible is None and torch.equal(torch.atleast_2d(q_pos), torch.atleast_2d(k_pos)[:, n_k - n_q :]):
            starts = first_ids(k_pos, None)
        method = (self.frequencies or own_frequencies(self.rotary)).at_length(k_pos.shape[-1])
        inv_freq = nn.functional.pad(method.inv_freq * rotates, (0, q.shape[3] // 2 - len(method.inv_freq)))
        method = Frequencies(method.config, method.theta, inv_freq)
        return Layout(q_pos, k_pos, method, self.distance, q.dtype, starts=starts, mask=visible)


def own_frequencies(rotary: Any, theta: float = 1.0, head_dim: int = 0) -> Frequencies:
    """Return a model's own inverse frequencies, with any scaling; zeros where it rotates nothing."""
    if rotary is None:
        return Frequencies(Own(), theta, Own().inv_freq(head_dim, theta))
    config = Rope() if getattr(rotary, "rope_type", "default") == "default" else Own()
    return Frequencies(config, theta, rotary.inv_freq.detach().double().cpu())


def find_rotary(model: nn.Module) -> Any:
    """Find the rotary embedding of a transformers model; None where it has none, or several."""
    rotaries = [module for module in model.modules() if isinstance(getattr(module, "inv_freq", None), Tensor)]
    return rotaries[0] if len(rotaries) == 1 else None


def apply(
    model: PreTrainedModel,
    *,
    distance: Distance | None = None,
    frequencies: Frequencies | None = None,
    inputs: list[LayerInputs] | None = None,
) -> PreTrainedModel:
    """Run position methods inside a transformers model from now on, and return the model.

    The weights and the code of the model stay as they are; applying plain distance removes the methods again. With
    `inputs` the lab attends under any methods, and adds the inputs of every layer's attention to the list.

    Raises: ConfigError for a model whose attention or rotary embedding the lab cannot replace.
    Example:
        model = apply(AutoModelForCausalLM.from_pretrained(folder), distance=distance("string", shift=683))
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    distance = distance or Plain()
    is_changed = not distance.is_plain or distance.scales_logits or frequencies is not None
    remove_methods(model)  # or a second call would compare the lab's attention with itself
    if not is_changed and inputs is None:
        return model
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, build_mask)
    rotary = find_rotary(model)
    message: str | None = "has no rotary embedding that all layers share"
    if not is_changed or rotary is not None:
        message = find_difference(model, rotary)
    if message is not None and rotary is not None and not is_changed:
        message = find_difference(model, None)  # its own rotation, and the lab's attention
    if message is not None:
        remove_methods(model)
        fix = " with other positions; leave them out" if is_changed else "; use another model"
        raise ConfigError(f"model={type(model).__name__}: {message}; the lab cannot compute its attention{fix}")
    if frequencies is not None and len(frequencies.inv_freq) != len(rotary.inv_freq):
        remove_methods(model)
        raise ConfigError(
            f"frequencies.head_dim={2 * len(frequencies.inv_freq)}: must be {2 * len(rotary.inv_freq)}, the "
            "dimensions that the model rotates; build them with it"
        )
    applied = APPLIED[model]
    applied.distance, applied.frequencies, applied.inputs, applied.layouts = distance, frequencies, inputs, {}
    return model


def remove_methods(model: PreTrainedModel) -> None:
    """Let a model compute its attention by itself again."""
    applied = APPLIED.get(model)
    if applied is not None:
        applied.handle.remove()
        model.set_attn_implementation(applied.own_attention)
    for module in model.modules():
        APPLIED.pop(module, None)


def find_difference(model: PreTrainedModel, rotary: Any) -> str | None:
    """Let the lab attend in a model, under the model's own method; return the difference, or None if there is none."""
    from transformers.utils import logging

    remove_methods(model)
    reach = getattr(model.config, "max_position_embeddings", None) or 0
    applied = Applied(rotary, model.config._attn_implementation, reach, Plain(), inputs=[])
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers warns of what the returned line says
    try:
        before = compute_logits(model)
        # An identity that no forward pass runs, for a model without rotation.
        applied.handle = (rotary or nn.Identity()).register_forward_hook(applied.return_unrotated, with_kwargs=True)
        APPLIED.update(dict.fromkeys(model.modules(), applied))
        model.set_attn_implementation(NAME)
        by_halves = measure_difference(model, before, applied, neighbours=False)
        by_neighbours = measure_difference(model, before, applied, neighbours=True)
        applied.frequencies = Frequencies(Own(), 1.0, 0 * own_frequencies(rotary).inv_freq)
        effect = measure_difference(model, before, applied, neighbours=by_neighbours < by_halves)  # of rotation
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, ConfigError) as error:
        return first_line(error)
    finally:
        logging.set_verbosity(verbosity)
    if not applied.inputs:
        return "attends by code of its own, not by transformers' attention interface"
    # The model and the lab may differ by rounding alone. Before training a rotation changes logits little, so that the
    # bound is a part of its effect; without a rotation it is relative to the logits.
    eps = torch.finfo(before.dtype).eps
    bound = eps**0.25 * effect
    if rotary is None:
        bound = eps**0.5 * float(before.abs().max())
    return None if min(by_halves, by_neighbours) <= bound else "rotates or attends in another way"


def measure_difference(model: PreTrainedModel, before: Tensor, applied: Applied, *, neighbours: bool) -> float:
    """Compute the largest change of a logit by the lab's attention, with either form of pairs."""
    applied.neighbours, applied.layouts = neighbours, {}
    return float((compute_logits(model) - before).abs().max())


@torch.no_grad()
def compute_logits(model: PreTrainedModel) -> Tensor:
    """Compute the logits of the short text by which a model is tried, (1, 16, V)."""
    tokens = torch.arange(16, device=model.device)[None] % model.config.get_text_config().vocab_size
    return model(tokens, use_cache=False).logits


def build_mask(*, q_length: int, kv_length: int, **settings: Any) -> Tensor | None:
    """Build transformers' boolean mask, or None only if it is causal over the same number of keys as queries."""
    from transformers.masking_utils import sdpa_mask

    # The library also skips it for single queries and for caches of fixed size, whose unfilled slots its own kernel
    # call hides.
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
    # Terms of other models' logits.
    terms = [name for name in ("softcap", "s_aux", "position_bias") if more.get(name) is not None]
    # Positions of cached keys are counted back from the last query. A window hides keys from it that others see.
    if applied.rotary is not None and window is not None and window < max(applied.reach, n_k):
        terms.insert(0, "sliding_window")
    if dropout:
        terms.insert(0, "attention_dropout")
    if terms:
        raise ConfigError(f"attends with {', '.join(terms)}")
    layout = applied.layout(query, n_k, attention_mask, rotates=bool(getattr(module, "use_rope", True)))
    n_rotated = 0 if applied.rotary is None else 2 * len(applied.rotary.inv_freq)
    query, key = (to_halves(x, n_rotated, applied.neighbours) for x in (query, key))
    if scaling not in (None, width**-0.5):  # the lab's kernels multiply by width ** -0.5
        query = query * (scaling * width**0.5)
    if applied.inputs is not None:
        applied.inputs.append(LayerInputs(len(applied.inputs), query, key, layout))
    layer: Any = getattr(module, "layer_idx", 0)
    out = attend_layout(query, key, value, layout, layer=layer, backend="auto")
    return out.transpose(1, 2).contiguous(), None


def to_halves(x: Tensor, n_rotated: int, neighbours: bool = False) -> Tensor:
    """Move the second dimensions of the rotated pairs to the second half of each head.

    Example:
        >>> to_halves(torch.arange(8), 4).tolist(), to_halves(torch.arange(8), 4, neighbours=True).tolist()
        ([0, 1, 4, 5, 2, 3, 6, 7], [0, 2, 4, 5, 1, 3, 6, 7])
    """
    if n_rotated in (0, x.shape[-1]) and not neighbours:
        return x
    index = torch.arange(x.shape[-1], device=x.device)
    pairs = index[:n_rotated].view(-1, 2).T if neighbours else index[:n_rotated].view(2, -1)
    return x[..., torch.cat([pairs, index[n_rotated:].view(2, -1)], dim=1).flatten()]
