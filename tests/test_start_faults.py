"""What users can get wrong, or have odd, about the weights, conversations and tags a run starts from."""

import json

import pytest

from lab.errors import CheckpointError, ConfigError
from lab.positions.methods import Replaced
from lab.settings import Raw, validated
from lab.source import Source, extended_base, inherit

SHAPE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}


def folder_with(place, **settings):
    (place / "config.json").write_text(json.dumps({**SHAPE, **settings}))
    return place


def test_a_source_without_a_tokenizer_asks_for_one(tmp_path):
    given = {"start": {"path": str(folder_with(tmp_path))}, "data": {"window": 128}}
    with pytest.raises(ConfigError, match="^data.tokenizer: must be set, start.path=.* holds no tokenizer.json with "):
        inherit({}, given)


def test_the_factors_of_longrope_are_inherited(tmp_path):
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2] * 8}
    folder = folder_with(tmp_path, rope_scaling=scaling, original_max_position_embeddings=1024)
    values = {}
    inherit(values, {"start": {"path": str(folder)}, "data": {"tokenizer": {"method": "bpe"}}})
    frequency = validated(Replaced, Raw({"position": values["position"]}, "x")).position.frequency
    assert (frequency.factor, frequency.train_len, frequency.long_factor) == (4.0, 1024, (2.0,) * 8)


@pytest.mark.parametrize("text", ["- 1\n", "model: {d_model: 3}\n", "model: 1\nposition: 2\ndata: 3\n"])
def test_a_config_that_is_not_of_a_run_is_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(CheckpointError, match="^start.path=.*: holds no config.yaml of a run; "):
        inherit({}, {"start": {"path": str(tmp_path)}})


@pytest.mark.parametrize(("method", "base"), [("rope", {"theta": 5e6}), ("pi", {}), ("abf", {})])
def test_the_table_of_bases_serves_plain_rope_alone(method, base):
    source = Source({"theta": 10000.0}, {"frequency": {"method": method}}, None, 4096)
    assert extended_base(source, {"data": {"window": 65536}}) == base
