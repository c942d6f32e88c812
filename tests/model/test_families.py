"""Families of transformers under distance methods: each computes as it is under plain distance, or is refused."""

import pytest
import torch

from lab.errors import ConfigError
from lab.model.huggingface import apply
from lab.positions import distance

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
DERIVED = {"falcon": ("head_dim",)}  # settings that a family's config computes itself
REFUSED = ("cohere", "falcon", "gemma3_text", "gpt_neox", "gpt2", "olmo3", "phi3")


def tiny(family):
    torch.manual_seed(0)
    sizes = {name: value for name, value in SIZES.items() if name not in DERIVED.get(family, ())}
    return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **sizes)).eval()


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_is_not_is_refused_in_one_line(family):
    model = tiny(family)
    with pytest.raises(ConfigError) as caught:
        apply(model, distance=distance("plain"))
    assert str(caught.value).startswith(f"model={type(model).__name__}: ")
    assert "\n" not in str(caught.value)
