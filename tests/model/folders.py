"""Small Hugging Face folders and decoders for the tests; transformers is the independent side of every comparison."""

import json

import pytest
import torch

from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder
from lab.positions import frequencies

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

TOL = 1e-5  # on logits up to 4, from a dozen float32 sums; transformers computes angles in float32 as well
APART = 100 * TOL  # a difference that cannot be rounding
MAX_POSITIONS = 64
SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": MAX_POSITIONS}
SIZES |= {"rms_norm_eps": 0.05}  # large enough to be missed
HEADS_OF_16 = {"head_dim": 16}
FULL = {"mistral": {"sliding_window": None}, "qwen3": {"head_dim": 8}}
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
YARN, OF_32 = {"rope_type": "yarn", "factor": 4.0}, {"original_max_position_embeddings": 32}
IN_FULL = {"beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.3, "truncate": False}
ROPES = {  # theta 1000 and 8 pairs: within 32 tokens pair 0 makes 5 rotations, pair 7 none
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {**YARN, **OF_32},
    "yarn_of_max_positions": YARN,
    "yarn_in_full": {**YARN, **OF_32, **IN_FULL, "beta_fast": 4},
    "llama3": {"rope_type": "llama3", "factor": 8.0, **OF_32, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


def tokens_of(length, vocab=SIZES["vocab_size"]):
    return torch.randint(0, vocab, (2, length), generator=torch.Generator().manual_seed(length))


def randomise(model, seed=0):
    """Draw every parameter, norms and biases included, so that each matters to the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if "norm" in name else 0.0
            parameter.copy_(torch.empty(parameter.shape).normal_(mean, 0.15, generator=generator))
    return model.eval()


def theirs(family="llama", **settings):
    config_class, model_class = CLASSES[family]
    rope = {"rope_type": "default", "rope_theta": 500.0}
    config = config_class(**{**SIZES, "rope_parameters": rope, **FULL.get(family, {}), **settings})
    config._attn_implementation = "eager"
    return randomise(model_class(config))


def opened(folder, dtype="auto"):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()


def edit(folder, drop=(), **settings):
    """Change config.json."""
    path = folder / "config.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in {**old, **settings}.items() if name not in drop}))


def edit_tensors(folder, change):
    """Change model.safetensors by a function of its dict."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in safetensors_torch.load_file(path).items()}
    change(tensors)
    safetensors_torch.save_file(tensors, path, metadata={"format": "pt"})


def logits_of(model, tokens):
    with torch.no_grad():
        out = model(tokens) if isinstance(model, Decoder) else model(tokens, use_cache=False).logits
    assert float(out.std()) > 0.5, "logits large enough for the tolerance to mean something"
    return out


def assert_same_logits(ours, theirs, lengths=(9, 150)):
    for length in lengths:
        tokens = tokens_of(length)
        torch.testing.assert_close(logits_of(ours, tokens), logits_of(theirs, tokens), rtol=0, atol=TOL)


def lengths_for(kind):
    return (9, MAX_POSITIONS) if kind.startswith("dynamic") else (9, 150)


def assert_same_state(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert list(a) == list(b)
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype
        assert torch.equal(tensor, b[name]), name


BASE = DecoderConfig(32, 2, 4, 2, 40, 61, tie_embeddings=False, norm_eps=0.05, attention_width=64)
METHODS = {
    "rope": {"method": "rope", "theta": 500.0},
    "abf": {"method": "abf", "theta": 5000.0},
    "pi": {"method": "pi", "theta": 1000.0, "factor": 4.0},
    "ntk": {"method": "ntk", "theta": 1000.0, "factor": 4.0},
    "dynamic_ntk": {"method": "dynamic_ntk", "theta": 1000.0, "factor": 4.0, "train_len": MAX_POSITIONS},
    "ntk_by_parts": {"method": "ntk_by_parts", "theta": 1000.0, "factor": 4.0, "train_len": 32},
    "yarn": {"method": "yarn", "theta": 1000.0, "factor": 4.0, "train_len": 32},
    "yarn_in_full": {"method": "yarn", "theta": 1000.0, "factor": 4.0, "train_len": 32, **IN_FULL},
    "llama3": {"method": "llama3", "theta": 1000.0, "factor": 8.0, "train_len": 32, "high_freq_factor": 3.0},
}


def decoder(method="rope", cfg=BASE, **options):
    parameters = dict(METHODS.get(method) or {"method": method})
    name = parameters.pop("method")
    own = frequencies(name, head_dim=cfg.head_dim, **parameters)
    return randomise(Decoder(cfg, frequencies=own, seed=None, **options), seed=1)
