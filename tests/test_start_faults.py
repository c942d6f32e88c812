"""What users can get wrong, or have odd, about the weights, conversations and tags a run starts from."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from lab.data.conversations import marked
from lab.data.text_files import Document
from lab.data.tokenizer import special_ends
from lab.errors import CheckpointError, ConfigError
from lab.model.huggingface.config import read_json, token_text
from lab.positions.methods import Replaced
from lab.settings import Raw, validated
from lab.source import Source, extended_base, find_place, inherit

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


@pytest.mark.parametrize(
    ("template", "ends"),
    [("<b> $A", ([0], [])), ("<b> $A <s>", ([0], [1])), ("$A <s>", ([], [1])), ("$A", ([], []))],
    ids=["before", "both", "after", "none"],
)
def test_special_tokens_before_and_after_a_text_are_told_apart(template, ends):
    tokenizer = Tokenizer(models.WordLevel({"<b>": 0, "<s>": 1, "a": 2, "tag": 3, "x": 4}, unk_token="x"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("<b>", 0), ("<s>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    assert special_ends(tokenizer) == ends
    ids = tokenizer.encode("a a").ids
    tagged, scored = marked(Document("a a", "tag"), ids, ends, [3], lambda text: [4])
    assert tagged == [*ends[0], 3, 2, 2, *ends[1]]
    assert scored == [True] * len(ends[0]) + [False, True, True] + [True] * len(ends[1])
    talk = Document("a a", "tag", (("a", False), ("b", True)))
    assert marked(talk, ids, ends, [], lambda text: [4])[0] == [*ends[0], 4, 4, *ends[1]]


def test_a_source_without_a_tokenizer_asks_for_one(tmp_path):
    given = {"start": {"path": str(folder_with(tmp_path))}, "data": {"window": 128}}
    with pytest.raises(ConfigError, match="^data.tokenizer: must be set, start.path=.* holds no tokenizer.json with "):
        inherit({}, given)


def test_own_frequencies_replace_those_that_are_not_understood(tmp_path):
    scaling = {"rope_type": "proportional"}
    folder = folder_with(tmp_path, rope_scaling=scaling)
    given = {"start": {"path": str(folder)}, "data": {"tokenizer": {"method": "bpe"}}}
    with pytest.raises(ConfigError, match="proportional"):
        inherit({}, given)
    own = {"frequency": {"method": "pi", "factor": 2}}
    values = {"position": own}
    inherit(values, {**given, "position": own})
    assert values["position"] == own
    assert values["model"]["d_model"] == 64


def test_the_factors_of_longrope_are_inherited(tmp_path):
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2] * 8}
    folder = folder_with(tmp_path, rope_scaling=scaling, original_max_position_embeddings=1024)
    values = {}
    inherit(values, {"start": {"path": str(folder)}, "data": {"tokenizer": {"method": "bpe"}}})
    frequency = validated(Replaced, Raw({"position": values["position"]}, "x")).position.frequency
    assert (frequency.factor, frequency.train_len, frequency.long_factor) == (4.0, 1024, (2.0,) * 8)


@pytest.mark.parametrize("text", ["{", "[]", '{"eos_token": 3}', "{}"])
def test_a_tokenizer_config_that_names_no_end_token(tmp_path, text):
    file = tmp_path / "tokenizer_config.json"
    file.write_text(text)
    if text == "{":
        with pytest.raises(CheckpointError, match="tokenizer_config.json: cannot be read"):
            read_json(file)
    else:
        assert token_text(read_json(file), "eos_token") is None


@pytest.mark.parametrize("text", ["- 1\n", "model: {d_model: 3}\n", "model: 1\nposition: 2\ndata: 3\n"])
def test_a_config_that_is_not_of_a_run_is_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(CheckpointError, match="^start.path=.*: holds no config.yaml of a run; "):
        inherit({}, {"start": {"path": str(tmp_path)}})


@pytest.mark.parametrize(("method", "base"), [("rope", {"theta": 5e6}), ("pi", {}), ("abf", {})])
def test_the_table_of_bases_serves_plain_rope_alone(method, base):
    source = Source({"theta": 10000.0}, {"frequency": {"method": method}}, None, 4096)
    assert extended_base(source, {"data": {"window": 65536}}) == base


def test_a_link_to_a_checkpoint_is_that_checkpoint(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "tokens-000000000000064"
    checkpoint.mkdir(parents=True)
    (tmp_path / "latest").symlink_to(checkpoint)
    assert find_place(tmp_path / "latest") == find_place(checkpoint)
    assert find_place(checkpoint).home == tmp_path / "run"
