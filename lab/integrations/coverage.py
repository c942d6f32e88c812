"""How far the attention of a model's layers reaches: windows and chunks, from its config.

A layer with a sliding window of W tokens sees the token itself and W - 1 before it; a layer with chunks of C tokens
sees those of its chunk, counted from the first token of its document. Where layers differ, f and g are those of the
type that sees most.

    window 3, a document of 5    f = 5 4 3 0 0        chunks of 3    f = 5 3 1 0 0
"""

import re
from typing import Any, NamedTuple

from torch import nn

from lab.core.errors import ConfigError


class Coverage(NamedTuple):
    """The sliding window or the chunks, in tokens, of the layers that see most; None for full attention.

    `is_replaced` means that a mask (B, 1, T, T) takes the place of the window, as transformers has it. `is_hybrid`
    means that other layers are recurrent, so that they see documents before a token's own.
    """

    window: int | None = None
    chunk: int | None = None
    is_replaced: bool = False
    is_hybrid: bool = False


def read_coverage(model: nn.Module) -> Coverage:
    """Read the types of layers as configs of transformers, litgpt and the lab's decoder state them.

    Raises: ConfigError for a model without attention.

    Example:
        >>> from types import SimpleNamespace
        >>> model = nn.Linear(1, 1)
        >>> model.config = SimpleNamespace(layer_types=["sliding_attention", "linear_attention"], sliding_window=8)
        >>> read_coverage(model).window
        8
    """
    # That of the model itself, or of the one that it wraps.
    configs = (getattr(module, "config", getattr(module, "cfg", None)) for module in model.modules())
    config = next(filter(None, configs), None)
    settings = getattr(config, "text_config", config)  # of a model that reads images too
    layers = getattr(settings, "layers", None)  # of the lab's own decoder

    def first(*names: str) -> Any:
        return next((value for name in names if (value := getattr(settings, name, None))), None)

    window = getattr(layers, "window", None) or first("sliding_window", "sliding_window_size", "window_size")
    chunk = first("attention_chunk_size")
    types = getattr(layers, "pattern", None) or first("layer_types", "attention_layers", "sliding_window_indices")
    if types is None:
        has_window = first("sliding_window") and getattr(settings, "use_sliding_window", True)
        types = ["sliding" if has_window else "chunked" if chunk else "full"]
    names = list(map(str, types))
    # Layers without attention, and those without positions in the lab's own decoder, reach no distance.
    reaching = [name for name in names if not re.search("linear|conv|mamba|moe|mlp|nope", name)]
    modules = "\n".join({type(module).__name__.lower() for module in model.modules()})
    has_attention = re.search("^(?!.*rwkv).*(att|mha)", modules, re.MULTILINE)
    is_recurrent = not has_attention and re.search("[mb]amba|rwkv|lstm|gru|retention", modules)
    if is_recurrent or not (reaching or layers):
        raise ConfigError(
            f"model={type(model).__name__}: has no attention layers, so that no distances are attended; use another"
        )
    return Coverage(
        window if all(re.search("sliding|local|window|1", name) for name in reaching) else None,
        chunk if all("chunk" in name for name in reaching) else None,
        hasattr(settings, "_attn_implementation") and not hasattr(settings, "attention_layers"),
        any(re.search("linear|conv|mamba|hybrid", name) for name in names),
    )
