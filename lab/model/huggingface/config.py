"""A Hugging Face config.json as a decoder's settings, both ways, for Llama, Mistral, Qwen2 and Qwen3; no torch.

    Llama, Mistral  RMSNorm, SwiGLU, RoPE, grouped-query attention: the lab's decoder
    Qwen2           the same with biases on queries, keys and values
    Qwen3           the same with RMSNorm on every head's queries and keys

    rope_type   method         its parameters
    default     rope           theta
    linear      pi             factor
    dynamic     dynamic_ntk    factor; train_len is max_position_embeddings
    yarn        yarn           factor, train_len, beta_fast, beta_slow, attention_factor or mscale, truncate
    llama3      llama3         factor, train_len, low_freq_factor, high_freq_factor

In the last two train_len is original_max_position_embeddings, or by default max_position_embeddings. Saving also
writes abf and ntk as default with their theta, and ntk_by_parts as yarn with attention_factor 1.

transformers 4 keeps rope_theta at the top and the rest in rope_scaling, transformers 5 keeps all in rope_parameters and
reads both. Settings that the lab's decoder would compute differently are errors. Source: transformers 5.23,
modeling_rope_utils.py and the four families' configuration files.
"""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.core.errors import CheckpointError, ConfigError, MissingPackage, abbreviate, first_line
from lab.core.files import read_object
from lab.core.schema import validated
from lab.core.types import JsonObject
from lab.model.config import DecoderConfig, LayersConfig
from lab.model.huggingface.rope import (
    READ_AS,
    collect_rope,
    frequency_settings,
    rope_section,
    rope_settings,
)
from lab.positions import FREQUENCY_METHODS, Distance, Frequencies

NAME = "config.json"
ADAPTER = "adapter_config.json"
DEFAULTS = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "use_sliding_window": False}
FAMILIES: dict[str, JsonObject] = {  # transformers' defaults for keys that config.json leaves out
    "llama": {**DEFAULTS, "num_key_value_heads": None, "max_position_embeddings": 2048},
    "mistral": {**DEFAULTS, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    "qwen2": {**DEFAULTS, "num_key_value_heads": 32, "max_position_embeddings": 32768},
    "qwen3": {**DEFAULTS, "num_key_value_heads": 32, "max_position_embeddings": 32768, "head_dim": 128},
}
SIZES = {  # the decoder's settings that config.json has by another name
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "d_ff": "intermediate_size",
    "vocab_size": "vocab_size",
    "tie_embeddings": "tie_word_embeddings",
    "norm_eps": "rms_norm_eps",
}
WINDOWS = ("max_position_embeddings", "seq_length", "max_seq_len")  # where families state their training window


def read_decoder_settings(folder: Path) -> JsonObject:
    """Read config.json with its family's defaults; reject a file that is missing, broken or of another family."""
    path = folder / NAME
    if not path.is_file():
        raise CheckpointError(f"{folder}: holds no {NAME}; use the folder of a Hugging Face model")
    settings = read_json(path)
    family = settings.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(
            f"model_type={family}: must be one of {', '.join(FAMILIES)}; use a model of these families, or evaluate "
            "this one by lab.loading.open_model"
        )
    return {**FAMILIES[family], **settings}


def model_settings(folder: Path, window: int | None = None) -> JsonObject:
    """Read config.json of any family, and its training window, for which `window` is the default.

    The settings of a family that the decoder does not serve are those that transformers reads.

    Raises: CheckpointError; ConfigError for a model that transformers does not know, or of no window; MissingPackage.
    """
    if read_json(folder / NAME).get("model_type") in FAMILIES:
        return read_decoder_settings(folder)
    with using_transformers(folder) as transformers:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config = config.get_text_config()
    for name in WINDOWS:
        if length := getattr(config, name, None):
            return {**config.to_dict(), "max_position_embeddings": length}
    if window is None:
        raise ConfigError(
            f"{folder / NAME}: states no training window; add max_position_embeddings, or give --window where a "
            "command has it"
        )
    return {**config.to_dict(), "max_position_embeddings": window}


def conversion(path: Path) -> str:
    """Write the commands that make a folder of safetensors of LoRA adapters, a GGUF file or pickles."""
    folder, files = path, sorted(path.glob("*.gguf"))
    if path.suffix == ".gguf":
        folder, files = path.parent, [path]
    package, loader, file, merge = "transformers", "transformers import AutoModelForCausalLM", "", ""
    if (folder / ADAPTER).is_file():
        package, loader, merge = "peft", "peft import AutoPeftModelForCausalLM", ".merge_and_unload()"
    elif files:
        package, file = "gguf", f", gguf_file={json.dumps(files[0].name)}"
    # A snapshot of the hub has none of these files: they are loaded by the model's name.
    model = json.dumps(re.sub(r".*/models--(.+?)--(.+?)/snapshots/.*", r"\1/\2", str(folder)))
    code = (
        f"from {loader} as M; from transformers import AutoTokenizer as T; "
        f"m = M.from_pretrained({model}{file}){merge}; "
        f'm.save_pretrained("converted"); T.from_pretrained(m.config._name_or_path{file}).save_pretrained("converted")'
    )
    return f"pip install {package}, then python -c {shlex.quote(code)}"


@contextmanager
def using_transformers(folder: Path) -> Iterator[Any]:
    """Import transformers, and report its errors in one line."""
    try:
        import transformers

        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        yield transformers
    except ModuleNotFoundError as error:
        raise MissingPackage(error.name or "transformers", f"the model of {folder}", "hf") from error
    except Exception as error:  # huggingface_hub's errors of settings derive from Exception alone
        raise ConfigError(
            f"{folder}: transformers cannot open it ({type(error).__name__}: {first_line(error)}); use another model"
        ) from error


def read_json(path: Path) -> JsonObject:
    """Read the object in a JSON file of the folder; reject a broken one; empty if the file is missing."""
    return read_object(path, CheckpointError, "copy the folder again") if path.is_file() else {}


def read_chat_template(folder: Path) -> str | None:
    """Read a folder's chat template, of several the one named default; None if it has none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file}: cannot be read ({error}); copy the folder again") from error
    template = read_json(folder / "tokenizer_config.json").get("chat_template")
    if not isinstance(template, list):
        return template
    for entry in template:
        if isinstance(entry, dict) and entry.get("name") == "default":
            return entry.get("template")
    return None


def special_texts(folder: Path) -> dict[str, str]:
    """Read the texts of a folder's special tokens by name, as chat templates use them."""
    settings = read_json(folder / "tokenizer_config.json")
    named = settings.get("extra_special_tokens")
    extra = named if isinstance(named, dict) else {}
    texts = {}
    # transformers 4 keeps in the first file what tokenizer_config.json may lack.
    for values in (read_json(folder / "special_tokens_map.json"), settings, extra):
        for name, token in values.items():
            text = token_text(token)
            if text is not None and (name.endswith("_token") or name in extra):
                texts[name] = text
    return texts


def declared_tokens(folder: Path) -> set[str]:
    """Read the texts of all tokens that a folder's files next to tokenizer.json declare."""
    settings = read_json(folder / "tokenizer_config.json")
    entries: list[object] = [*special_texts(folder).values(), *read_json(folder / "added_tokens.json")]
    for values in (settings, read_json(folder / "special_tokens_map.json")):
        for key in ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
            value = values.get(key) or []
            entries += value.values() if isinstance(value, dict) else value
    return {text for text in map(token_text, entries) if text}


def token_text(token: object) -> str | None:
    """Return the text of a special token, which is stored as text or as an object with properties."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def decoder_config(settings: JsonObject, *, own_frequencies: bool) -> DecoderConfig:
    """Translate the settings; the frequency method's name is checked too, unless the caller replaces the method."""
    errors = find_config_errors(settings, own_frequencies)
    if errors:
        raise ConfigError(*errors)
    values: JsonObject = {ours: settings.get(theirs) for ours, theirs in SIZES.items()}
    values["n_kv_heads"] = values["n_kv_heads"] or values["n_heads"]
    values["theta"] = collect_rope(settings)["rope_theta"]
    values["qkv"] = {"qwen2": "bias", "qwen3": "norm"}.get(settings["model_type"], "plain")
    # Sizes may still be missing or no numbers here; DecoderConfig rejects them by name.
    width = settings.get("head_dim") and settings["head_dim"] * (values["n_heads"] or 0)
    if width != values["d_model"]:
        values["attention_width"] = width
    if (window := find_window(settings)) is not None:
        values["layers"] = LayersConfig(pattern=("window",), window=window)
    return DecoderConfig(**values)


def find_window(settings: JsonObject) -> Any:
    """Return the sliding window of all layers, in tokens, or None."""
    # Qwen2 and Qwen3 may state a window that use_sliding_window switches off; Llama has none.
    return settings.get("sliding_window") if settings["model_type"] == "mistral" else None


def find_config_errors(settings: JsonObject, own_frequencies: bool) -> list[str]:
    """List the settings under which the lab's decoder would differ from transformers."""
    family = settings["model_type"]
    reach = settings["max_position_embeddings"]
    rope = collect_rope(settings)
    values = {**settings, **rope}
    only: JsonObject = {"use_sliding_window": False, "mlp_bias": False, "quantization_config": None}
    only |= {"partial_rotary_factor": 1, "hidden_act": "silu"}
    if family != "qwen2":
        only["attention_bias"] = False
    errors = []
    for name, value in only.items():
        if values.get(name) not in (None, value):
            errors.append(f"{name}={values[name]}: must be {value}; use another model")
    if set(settings.get("layer_types") or ()) - {"full_attention"}:
        errors.append(f"layer_types={settings['layer_types']}: must all be full_attention; use another model")
    if type(reach) is not int:
        errors.append(f"max_position_embeddings={reach}: must be a whole number of tokens; correct it")
    if rope["rope_type"] not in READ_AS and not own_frequencies:
        errors.append(
            f"rope_type={rope['rope_type']}: must be one of {', '.join(READ_AS)}; pass frequencies to load_pretrained"
        )
    for name, value in rope.items():
        if isinstance(value, dict):  # transformers' form for types of layers, each with its own rotary settings
            errors.append(f"rope_parameters.{name}: must be the same in all layers; use another model")
    if not errors and not own_frequencies:
        # The method checks its parameters itself; each line gets the section of config.json in front.
        try:
            method = frequency_settings(settings)
            validated(FREQUENCY_METHODS[method["method"]], method)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            errors += [
                f"{rope_section(settings)[0]}.{message}" for message in getattr(error, "errors", (first_line(error),))
            ]
    return errors


def hugging_face_settings(
    cfg: DecoderConfig, frequencies: Frequencies, distance: Distance, dtype: str, train_len: int | None
) -> JsonObject:
    """Write a decoder's settings as config.json, readable by transformers 4 and 5.

    A decoder with biases is saved as Qwen2, one with norms of queries and keys as Qwen3.

    Raises: ConfigError for positions that config.json does not support.
    """
    if not distance.is_plain or distance.log_n is not None:
        name = f"distance.log_n={distance.log_n}" if distance.is_plain else f"distance={distance.method}"
        raise ConfigError(
            f"{name}: not supported by a Hugging Face folder; export it by --weights_only, or save plain distance, "
            "and use apply() on the loaded model"
        )
    window = None if cfg.layers is None else cfg.layers.window
    if cfg.layers is not None and (set(cfg.layers.pattern) != {"window"} or cfg.qkv != "plain"):
        raise ConfigError(
            f"model.layers.pattern={abbreviate(cfg.layers.pattern)}: no family of transformers that the lab writes "
            "has it; evaluate the run folder"
        )
    # transformers' Llama rejects heads that do not divide the width.
    plain = "mistral" if cfg.d_model % cfg.n_heads or window else "llama"
    family = {"bias": "qwen2", "norm": "qwen3"}.get(cfg.qkv, plain)
    settings = {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        **{theirs: getattr(cfg, ours) for ours, theirs in SIZES.items()},
        "head_dim": cfg.head_dim,
        "hidden_act": "silu",
        **rope_settings(frequencies, train_len),
    }
    if family != "qwen2":  # which has no such setting, and whose biases are those of queries, keys and values
        settings["attention_bias"] = False
    # Ids that are missing would become Llama's 1 and 2. transformers 4 reads torch_dtype, transformers 5 dtype.
    settings |= {"mlp_bias": False, "sliding_window": window, "use_sliding_window": False}
    return settings | {"bos_token_id": None, "eos_token_id": None, "dtype": dtype, "torch_dtype": dtype}
