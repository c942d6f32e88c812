"""Causal models of transformers that the lab's decoder does not serve, with what evaluations use of a decoder.

They run as they are, by the library's own code and key cache; other position methods come in by `apply`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.core.errors import CheckpointError, ConfigError
from lab.model.attention.layout import LayerInputs
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder
from lab.model.huggingface.config import SIZES, reading
from lab.model.huggingface.interface import apply, find_rotary, own_frequencies
from lab.model.huggingface.pretrained import INDEX, SINGLE, find_tensors
from lab.positions import Distance, Frequencies
from lab.positions.methods import ROPE_THETA
from lab.positions.rope import Plain

MOST_LOGITS = 2**26  # of one pass, 256 MiB in float32


class Foreign:
    """A model of transformers under position methods; setting one that it cannot run raises ConfigError."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cfg = to_decoder_config(model.config.get_text_config())
        rope = getattr(model.config, "rope_parameters", None) or {}
        self.own = own_frequencies(find_rotary(model), rope.get("rope_theta", ROPE_THETA), self.cfg.head_dim)
        self.methods: tuple[Frequencies, Distance] = self.own, Plain()
        taken = inspect.signature(model.forward).parameters
        self.cache = next((name for name in ("past_key_values", "cache_params") if name in taken), "")
        if not self.cache or "logits_to_keep" not in taken:
            raise ConfigError(f"model={type(model).__name__}: takes no cache or no logits_to_keep; use another model")

    frequencies: Any = property(lambda self: self.methods[0], lambda self, method: self.install(method, self.distance))
    distance: Any = property(lambda self: self.methods[1], lambda self, method: self.install(self.frequencies, method))

    def install(self, frequencies: Frequencies, distance: Distance, inputs: list[LayerInputs] | None = None) -> None:
        """Apply both methods; with `inputs`, also collect the inputs of the layers in it."""
        other = None if frequencies is self.own else frequencies
        apply(self.model, distance=distance, frequencies=other, inputs=inputs)
        self.methods = frequencies, distance

    def remade(self, make: Callable[[Any], Any]) -> Foreign:
        """Put another model, which is made of this one while no method is applied, under the same methods."""
        apply(self.model)
        other = Foreign(make(self.model).eval())
        other.install(other.own if self.frequencies is self.own else self.frequencies, self.distance)
        self.install(*self.methods)
        return other

    @property
    def most_tokens(self) -> int | None:
        """The tokens that a table of positions is for; None for a model without one."""
        length = getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 0
        tables = [module for module in self.model.modules() if isinstance(module, torch.nn.Embedding)]
        sizes = [table.num_embeddings for table in tables if table is not self.embedding]
        if {length, length + 2} & {*sizes}:  # OPT's table has two more
            return length
        return None

    @property
    def embedding(self) -> Any:
        return self.model.get_input_embeddings()

    def __call__(self, tokens: Tensor, *, cache: Any = None, last_only: bool = False) -> Tensor:
        """Return logits (B, T, V), of the last token alone if asked; with a cache the tokens follow the cached ones."""
        past = {self.cache: None if cache is None else cache.theirs, "use_cache": cache is not None}
        logits: Tensor = self.model(tokens, logits_to_keep=int(last_only), **past).logits  # 0 keeps all
        return logits

    def new_cache(self, batch: int, max_tokens: int) -> ForeignCache:
        return ForeignCache(self, batch, max_tokens)

    def scored_logits(self, tokens: Tensor, wanted: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute the logits at the places that are wanted, in parts: their indices in the flat (B * T,), and (n, V).

        Shapes: tokens int64 (B, T), wanted bool (B, T).
        """
        columns = wanted.any(0).nonzero()[:, 0]
        rows = max(1, MOST_LOGITS // max(1, len(columns) * self.cfg.vocab_size))
        places = torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape)[:, columns]
        for part, place, chosen in zip(*(x.split(rows) for x in (tokens, places, wanted[:, columns])), strict=True):
            if len(columns):
                yield place[chosen], self.model(part, use_cache=False, logits_to_keep=columns).logits[chosen]

    @torch.no_grad()
    def layer_inputs(self, tokens: Tensor, shift: int) -> list[LayerInputs]:
        """Collect the inputs of every layer's attention over rows of one text each, the first at position `shift`."""
        inputs: list[LayerInputs] = []
        self.install(*self.methods, inputs=inputs)
        ids = torch.arange(shift, shift + tokens.shape[1], device=tokens.device)[None]
        self.model(tokens, use_cache=False, logits_to_keep=1, **({"position_ids": ids} if shift else {}))
        self.install(*self.methods)
        return inputs

    def to(self, device: torch.device | str) -> Foreign:
        self.model.to(device)
        return self


AnyDecoder = Decoder | Foreign


class ForeignCache:
    """transformers' own cache, used by generation as the decoder's; it grows, and has all rows from the start."""

    def __init__(self, foreign: Foreign, batch: int, max_tokens: int) -> None:
        from transformers import DynamicCache

        cfg = foreign.cfg
        self.theirs: Any = DynamicCache(config=foreign.model.config)
        self.batch = batch
        self.n_elements = 2 * cfg.n_layers * batch * cfg.n_kv_heads * max_tokens * cfg.head_dim
        whole = foreign.frequencies.is_dynamic or foreign.frequencies.method == "own" or any(self.theirs.is_linear)
        self.n_maps = 0 if whole else 1  # none where states depend on the text's length, or have no beginning

    def select(self, rows: slice, length: int) -> None:
        """Select nothing."""

    def repeat(self, length: int) -> None:
        """Copy the one row that was read into all."""
        self.theirs.reorder_cache(torch.zeros(self.batch, dtype=torch.long))

    def compact(self, rows: Tensor) -> None:
        """Keep some rows; int64 (n,)."""
        self.theirs.reorder_cache(rows)


def to_decoder_config(config: Any) -> DecoderConfig:
    """Return the sizes of a model of transformers as those of a decoder."""
    sizes: dict[str, Any] = {ours: getattr(config, theirs, None) for ours, theirs in SIZES.items()}
    heads, width = sizes["n_heads"] or 1, sizes["d_model"]
    sizes |= {"n_heads": heads, "n_kv_heads": sizes["n_kv_heads"] or heads, "d_ff": sizes["d_ff"] or 4 * width}
    sizes |= {"attention_width": heads * (getattr(config, "head_dim", None) or width // heads)}
    return DecoderConfig(**{**sizes, "tie_embeddings": False, "norm_eps": 1e-5})


def load_foreign(folder: Path, device: torch.device | str) -> Foreign:
    """Load a causal model in float32, from safetensors alone, refusing weights that do not fit it or are ambiguous."""
    if (folder / INDEX).is_file() and (folder / SINGLE).is_file():
        raise CheckpointError(f"{folder / SINGLE}: transformers would read it in place of {INDEX}; delete one of them")
    for name in find_tensors(folder)[1]:
        rule = f"two files have it, and transformers may read another than {INDEX} names"
        raise CheckpointError(f"{folder}: {name}: {rule}; delete the other copy")
    with reading(folder) as transformers:
        options: dict[str, Any] = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
        options |= {"dtype": torch.float32, "output_loading_info": True}
        model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    lost = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if lost:
        raise CheckpointError(f"{folder}: weights do not fit config.json ({', '.join(lost[:3])}); copy it again")
    return Foreign(model.to(device).eval())
