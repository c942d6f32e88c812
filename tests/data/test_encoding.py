import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from eval.engine.texts import load_documents
from lab.data.config import TokenizerFile
from lab.data.preparation import prepare, shard_folder
from lab.data.shards import TokenStore
from lab.data.tokenizer import assign_split, load_tokenizer, train_bpe
from lab.probe.measuring import HeldOutLoss
from tests.data.stores import refused, sentence, text_config, write_corpus

OWN = {  # settings in a tokenizer.json, by where they are
    "truncation": {"truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}},
    "padding": {"padding": {"strategy": {"Fixed": 40}, "direction": "Left", "pad_id": 0, "pad_type_id": 0}},
    "dropout": {"model": {"dropout": 0.5}},
}
OWN["padding"]["padding"] |= {"pad_to_multiple_of": None, "pad_token": "<bos>"}
PIECES = ["?", "<eos>", "alpha", "beta"]
MODELS = {
    "unigram": models.Unigram([(piece, -1.0) for piece in PIECES], 0, False),
    "words": models.WordLevel({piece: number for number, piece in enumerate(PIECES)}, unk_token="?"),
}


@pytest.mark.parametrize("name", OWN)
def test_settings_of_the_file_are_off_and_shards_made_with_them_are_refused(tmp_path, bpe, name):
    write_corpus(tmp_path / "corpus")
    texts = [sentence(number) for number in range(60)]
    content = json.loads(bpe.to_str())
    for key, value in OWN[name].items():
        content[key] = content["model"] | value if key == "model" else value
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    tokenizer = load_tokenizer(path)
    wanted = [encoded.ids for encoded in Tokenizer.from_str(bpe.to_str()).encode_batch(texts)]
    assert [encoded.ids for encoded in tokenizer.encode_batch(texts)] == wanted
    config = text_config(tmp_path, tokenizer=TokenizerFile(path=str(path), eos="<eos>"), held_out_frac=0.0)
    prepare(config, progress=False)
    folder = shard_folder(config)
    stored = sorted(ids.tolist()[:-1] for ids in TokenStore.open(folder, "train").documents())
    texts = [json.loads(line)["text"] for file in (tmp_path / "corpus").iterdir() for line in file.open()]
    assert stored == sorted(bpe.encode(text).ids for text in texts)


def test_a_tokenizer_is_trained_on_long_words_in_parts():
    word = "".join(np.random.default_rng(0).choice(["ab", "cd", "e"], 1500).tolist())
    wanted = train_bpe([f" {word[:999]}", *(word[k : k + 1000] for k in range(999, len(word), 1000)), " or"], 400)
    assert train_bpe([f" {word} or"], 400).to_str() == wanted.to_str()
    start = time.process_time()
    train_bpe(["a" * 200_000], 400)
    assert time.process_time() - start < 5, "the square of 200,000 takes half a minute"


def test_bytes_are_those_of_the_original_text(tmp_path, bpe):
    """Full-width letters take three bytes each, and one in the decoded text of a tokenizer that normalizes them."""
    texts = ["".join(chr(ord(c) + 0xFEE0) if c.isalnum() else c for c in sentence(k) if c < "\x7f") for k in range(60)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = Tokenizer.from_str(bpe.to_str())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = text_config(tmp_path, tokenizer=TokenizerFile(path=str(tmp_path), eos="<eos>"), held_out_frac=0.5)
    config = replace(config, corpus=replace(config.corpus, path=str(tmp_path / "corpus.jsonl")))
    prepare(config, progress=False)
    held_out = [text for text in texts if assign_split(text, 0.5) == "held_out"]
    store = TokenStore.open(shard_folder(config), "held_out")
    segments = sum(-(-len(ids) // config.window) for ids in store.documents())
    config = replace(config, look_ahead=segments)  # one pack of all of them
    loss = HeldOutLoss(config, tokens=2**20, pack_tokens=store.n_tokens, rank=0, world_size=1, device="cpu")
    assert loss.n_bytes == sum(len(text.encode()) for text in held_out)
    read = load_documents(SimpleNamespace(tokenizer=load_tokenizer(tmp_path)), str(tmp_path / "corpus.jsonl"))
    assert [int(n_bytes.sum()) for _, n_bytes in read] == [len(text.encode()) for text in texts]


@pytest.mark.parametrize("model", MODELS)
def test_a_text_with_an_end_token_among_its_tokens_is_skipped(tmp_path, model):
    tokenizer = Tokenizer(MODELS[model])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "corpus").mkdir()
    for name, text in {"a": "alpha", "b": "alpha <eos> beta", "c": "beta"}.items():
        (tmp_path / "corpus" / f"{name}.txt").write_text(text)
    config = text_config(tmp_path, tokenizer=TokenizerFile(path=str(tmp_path), eos="<eos>"), held_out_frac=0.0)
    assert prepare(config, progress=False).skips == {"spells data.tokenizer.eos": 1}
    assert [ids.tolist() for ids in TokenStore.open(shard_folder(config), "train").documents()] == [[2, 1], [3, 1]]


def test_a_file_without_tokens_is_one_line(tmp_path):
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with refused(f"data.tokenizer.path={tmp_path}: has no tokens"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"model": {"type": "Nonsense"}}', b"\xff"])
def test_a_broken_file_is_one_line(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with refused(f"data.tokenizer.path={path}: not a tokenizer.json ("):
        load_tokenizer(path)
