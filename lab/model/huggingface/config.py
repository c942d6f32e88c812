"""A Hugging Face config.json as a decoder's settings, both ways, for Llama, Mistral, Qwen2 and Qwen3; no torch.

    Llama, Mistral  RMSNorm, SwiGLU, RoPE, grouped-query attention: the lab's decoder
    Qwen2           the same with biases on queries, keys and values
    Qwen3           the same with RMSNorm on every head's queries and keys

Settings that the lab's decoder would compute differently are errors. Source: transformers 5.23, configuration_llama.py,
configuration_mistral.py, configuration_qwen2.py, configuration_qwen3.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from lab.errors import CheckpointError, ConfigError
from lab.model.config import DecoderConfig
from lab.model.huggingface.rope import Number, Rope, faults_of, is_number, rope_settings
from lab.positions import Distance, Frequencies

NAME = "config.json"
Whole = Annotated[int, Field(ge=1, strict=True)]


class Sizes(BaseModel):
    """The sizes that a decoder is built from."""

    hidden_size: Whole
    intermediate_size: Whole
    num_hidden_layers: Whole
    num_attention_heads: Whole
    vocab_size: Whole
    max_position_embeddings: Whole
    num_key_value_heads: Whole | None
    head_dim: Whole | None = None
    rms_norm_eps: Number


DEFAULTS = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "use_sliding_window": False}
FAMILIES: dict[str, dict[str, Any]] = {  # transformers' defaults for keys that config.json leaves out
    "llama": {**DEFAULTS, "num_key_value_heads": None, "max_position_embeddings": 2048},
    "mistral": {**DEFAULTS, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    "qwen2": {**DEFAULTS, "num_key_value_heads": 32, "max_position_embeddings": 32768},
    "qwen3": {**DEFAULTS, "num_key_value_heads": 32, "max_position_embeddings": 32768, "head_dim": 128},
}


def read_settings(folder: Path) -> dict[str, Any]:
    """Read config.json and fill in its family's defaults.

    Raises: CheckpointError for a file that is missing or broken; ConfigError for another family.
    """
    path = folder / NAME
    if not path.is_file():
        raise CheckpointError(f"{folder}: holds no {NAME}; use the folder of a Hugging Face model")
    settings = read_json(path)
    family = settings.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(f"model_type={family}: must be one of {', '.join(FAMILIES)}; use a model of these families")
    return {**FAMILIES[family], **settings}


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file of the folder; empty if the file is missing or holds something else.

    Raises: CheckpointError for a broken file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); copy the folder again") from error
    return content if isinstance(content, dict) else {}


def token_text(settings: Mapping[str, Any], key: str) -> str | None:
    """Return the text of a special token in tokenizer_config.json, which holds it alone or with its properties."""
    token = settings.get(key)
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def decoder_config(settings: Mapping[str, Any], rope: Rope, *, own_frequencies: bool) -> DecoderConfig:
    """Translate the settings; the frequency method is checked too, unless the caller replaces it.

    Raises: ConfigError, a line per fault.
    """
    missing = f"missing from {NAME}; copy the folder again"
    faults = faults_of(Sizes, settings, missing=missing) or structure_faults(settings) + rope.faults(own_frequencies)
    if faults:
        raise ConfigError(*faults)
    d_model, n_heads = settings["hidden_size"], settings["num_attention_heads"]
    width = n_heads * (settings.get("head_dim") or d_model // n_heads)
    return DecoderConfig(
        d_model=d_model,
        n_layers=settings["num_hidden_layers"],
        n_heads=n_heads,
        n_kv_heads=settings["num_key_value_heads"] or n_heads,
        d_ff=settings["intermediate_size"],
        vocab_size=settings["vocab_size"],
        tie_embeddings=bool(settings["tie_word_embeddings"]),
        theta=float(rope.theta),
        norm_eps=float(settings["rms_norm_eps"]),
        qkv="bias" if settings["model_type"] == "qwen2" else "norm" if settings["model_type"] == "qwen3" else "plain",
        attention_width=None if width == d_model else width,
    )


def structure_faults(settings: Mapping[str, Any]) -> list[str]:
    """List the settings under which the lab's decoder would differ from transformers."""
    family, reach, window = settings["model_type"], settings["max_position_embeddings"], settings.get("sliding_window")
    whole, qwen = "attention sees all preceding tokens", family.startswith("qwen")
    wide = qwen or window is None or (is_number(window) and window >= reach)
    refused = {  # setting: whether it is refused, the rule
        "hidden_act": (settings["hidden_act"] != "silu", "must be silu, the feed-forward is SwiGLU"),
        "mlp_bias": (settings.get("mlp_bias"), f"must be false for {family}"),
        "attention_bias": (family != "qwen2" and settings.get("attention_bias"), f"must be false for {family}"),
        "use_sliding_window": (settings["use_sliding_window"], f"must be false, {whole}"),
        "sliding_window": (not wide, f"must be null or >= max_position_embeddings={reach}, {whole}"),
    }
    faults = [f"{name}={settings[name]}: {rule}; use another model" for name, (bad, rule) in refused.items() if bad]
    if settings.get("quantization_config"):
        method = dict(settings["quantization_config"]).get("quant_method", "unknown")
        faults.append(f"quantization_config.quant_method={method}: must be left out; use the model's float weights")
    sliding = [n for n, kind in enumerate(settings.get("layer_types") or ()) if kind != "full_attention"]
    if sliding:
        kind = settings["layer_types"][sliding[0]]
        faults.append(f"layer_types[{sliding[0]}]={kind}: must be full_attention, {whole}; use another model")
    return faults


def hugging_face_settings(
    cfg: DecoderConfig, frequencies: Frequencies, distance: Distance, dtype: str, train_len: int | None
) -> dict[str, Any]:
    """Write a decoder's settings as config.json, readable by transformers 4 and 5.

    A decoder with biases is saved as Qwen2, one with norms of queries and keys as Qwen3, one whose heads do not divide
    d_model as Mistral, since transformers' Llama refuses those. The ids of <bos> and <eos> are unknown and null;
    otherwise transformers assumes Llama's 1 and 2.

    Raises: ConfigError for positions that config.json does not support.
    """
    if not distance.is_plain or distance.scales_logits:
        name = f"distance={distance.method}" if not distance.is_plain else f"distance.log_n={distance.log_n}"
        raise ConfigError(
            f"{name}: not supported by a Hugging Face folder; save with plain distance and use apply() on the "
            "loaded model"
        )
    rope = rope_settings(frequencies, train_len)
    family = "mistral" if cfg.d_model % cfg.n_heads else "llama"
    family = {"bias": "qwen2", "norm": "qwen3"}.get(cfg.qkv, family)
    own: dict[str, dict[str, Any]] = {
        "llama": {"attention_bias": False, "mlp_bias": False},
        "mistral": {"sliding_window": None},
        "qwen2": {"use_sliding_window": False},
        "qwen3": {"use_sliding_window": False, "attention_bias": False},
    }
    return {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        "vocab_size": cfg.vocab_size,
        "hidden_size": cfg.d_model,
        "intermediate_size": cfg.d_ff,
        "num_hidden_layers": cfg.n_layers,
        "num_attention_heads": cfg.n_heads,
        "num_key_value_heads": cfg.n_kv_heads,
        "head_dim": cfg.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": cfg.norm_eps,
        "tie_word_embeddings": cfg.tie_embeddings,
        **rope,
        **own[family],
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
