"""Causal models of transformers that the lab's decoder does not serve, with the methods of a decoder for evaluations.

They run as they are, by the library's own code and key cache; `apply` installs other position methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.core.errors import CheckpointError, ConfigError
from lab.core.types import JsonObject
from lab.model.attention.layout import LayerInputs
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder
from lab.model.huggingface.config import SIZES, WINDOWS, using_transformers
from lab.model.huggingface.interface import apply, find_rotary, own_frequencies
from lab.model.huggingface.pretrained import find_tensors
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
        parameters = inspect.signature(model.forward).parameters
        # Models with recurrent states, such as Mamba, call their cache by the second name.
        self.cache = "past_key_values" if "past_key_values" in parameters else "cache_params"
        if not {self.cache, "logits_to_keep"} <= parameters.keys():
            raise ConfigError(f"model={type(model).__name__}: takes no cache or no logits_to_keep; use another model")

    # Evaluations assign methods to these names of a decoder; here an assignment installs them in the model.
    frequencies: Any = property(lambda self: self.methods[0], lambda self, method: self.install(method, self.distance))
    distance: Any = property(lambda self: self.methods[1], lambda self, method: self.install(self.frequencies, method))

    def install(self, frequencies: Frequencies, distance: Distance, inputs: list[LayerInputs] | None = None) -> None:
        """Apply both methods; with `inputs`, also collect the inputs of the layers in it."""
        replaced = None if frequencies is self.own else frequencies
        apply(self.model, distance=distance, frequencies=replaced, inputs=inputs)
        self.methods = frequencies, distance

    def remade(self, make: Callable[[Any], Any]) -> Foreign:
        """Make another model of this one, and install the same methods in it."""
        apply(self.model)  # without methods, so that a copy has no hooks and no attention of the lab
        other = Foreign(make(self.model).eval())
        frequencies, distance = self.methods
        other.install(other.own if frequencies is self.own else frequencies, distance)
        self.install(frequencies, distance)
        return other

    @property
    def most_tokens(self) -> int | None:
        """The number of tokens that a table of positions has room for; None for a model without one."""
        return count_positions(self.model)

    @property
    def embedding(self) -> Any:
        return self.model.get_input_embeddings()

    def __call__(self, tokens: Tensor, *, cache: Any = None, last_only: bool = False) -> Tensor:
        """Return logits (B, T, V), with `last_only` (B, 1, V); with a cache the tokens follow the cached ones."""
        settings: JsonObject = {"use_cache": cache is not None}
        if cache is not None:
            settings[self.cache] = cache.theirs
        logits: Tensor = self.model(tokens, logits_to_keep=int(last_only), **settings).logits  # 0 keeps all
        return logits

    def new_cache(self, batch: int, max_tokens: int) -> ForeignCache:
        return ForeignCache(self, batch, max_tokens)

    def scored_logits(self, tokens: Tensor, is_scored: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute the logits of the scored tokens in parts: their indices in the flat (B * T,), and (n, V).

        Shapes: tokens int64 (B, T), is_scored bool (B, T).
        """
        columns = is_scored.any(0).nonzero()[:, 0]
        if not len(columns):
            return
        rows = max(1, MOST_LOGITS // (len(columns) * self.cfg.vocab_size))
        indices = torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape)[:, columns]
        for start in range(0, len(tokens), rows):
            part = slice(start, start + rows)
            scored = is_scored[part, columns]
            logits = self.model(tokens[part], use_cache=False, logits_to_keep=columns).logits
            yield indices[part][scored], logits[scored]

    @torch.no_grad()
    def layer_inputs(self, tokens: Tensor, shift: int) -> list[LayerInputs]:
        """Collect the inputs of every layer's attention over rows of one text each, the first at position `shift`."""
        inputs: list[LayerInputs] = []
        self.install(*self.methods, inputs=inputs)
        settings = {}
        if shift:  # models without position_ids can be measured at shift 0
            settings["position_ids"] = torch.arange(shift, shift + tokens.shape[1], device=tokens.device)[None]
        self.model(tokens, use_cache=False, logits_to_keep=1, **settings)
        self.install(*self.methods)
        return inputs

    def to(self, device: torch.device | str) -> Foreign:
        self.model.to(device)
        return self


AnyDecoder = Decoder | Foreign


def count_positions(model: torch.nn.Module) -> int | None:
    """Return how many tokens a table of positions has room for, of any model whose config states it; None without one.

    A model of transformers has a config for text, and others, such as nanoGPT's, have `block_size` in theirs.
    """
    config = getattr(model, "config", None)
    config = getattr(config, "get_text_config", lambda: config)()
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    of_tokens = getattr(model, "get_input_embeddings", lambda: next(iter(tables), None))()
    sizes = {table.num_embeddings for table in tables if table is not of_tokens}
    sizes |= {len(table) for table in model.buffers() if table.ndim > 1}  # GPT-J's
    for name in (*WINDOWS, "block_size", "context_length"):
        length = getattr(config, name, None)
        if length and {length, length + 2} & sizes:  # OPT's table has two more
            return int(length)
    return None


class ForeignCache:
    """transformers' own cache, with the methods of `KeyCache`; it grows, and has all rows from the start."""

    def __init__(self, foreign: Foreign, batch: int, max_tokens: int) -> None:
        from transformers import DynamicCache

        cfg = foreign.cfg
        self.theirs: Any = DynamicCache(config=foreign.model.config)
        self.n_elements = 2 * cfg.n_layers * batch * cfg.n_kv_heads * max_tokens * cfg.head_dim
        # 0 makes generation read every prompt in one pass: states may depend on the length of the text.
        depends_on_length = foreign.frequencies.is_dynamic or foreign.frequencies.method == "own"
        self.n_maps = 0 if depends_on_length or any(self.theirs.is_linear) else 1

    def select(self, rows: slice, length: int) -> None:
        """Select nothing."""

    def compact(self, rows: Tensor) -> None:
        """Keep some rows; int64 (n,)."""
        self.theirs.reorder_cache(rows)


def to_decoder_config(config: Any) -> DecoderConfig:
    """Return the sizes of a model of transformers as those of a decoder."""
    sizes: JsonObject = {ours: getattr(config, theirs, None) for ours, theirs in SIZES.items()}
    heads, width = sizes["n_heads"] or 1, sizes["d_model"]
    sizes |= {"n_heads": heads, "n_kv_heads": sizes["n_kv_heads"] or heads, "d_ff": sizes["d_ff"] or 4 * width}
    sizes["attention_width"] = heads * (getattr(config, "head_dim", None) or width // heads)
    sizes |= {"tie_embeddings": False, "norm_eps": 1e-5}  # unused
    return DecoderConfig(**sizes)


def load_foreign(folder: Path, device: torch.device | str) -> Foreign:
    """Load a causal model in float32, from safetensors alone; reject weights that do not fit it or are ambiguous."""
    find_tensors(folder)
    with using_transformers(folder) as transformers:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    # transformers initialises such tensors at random, with a warning.
    unread = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if unread:
        raise CheckpointError(f"{folder}: weights do not fit config.json ({', '.join(unread[:3])}); copy it again")
    return Foreign(model.to(device).eval())
