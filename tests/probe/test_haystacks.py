import re

import pytest

from lab.core.errors import DataError
from lab.data.config import DataConfig
from lab.data.preparation import prepare, shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.probe.needles import load_haystack
from tests.data.stores import read_shard, text_config, write_corpus
from tests.refusals import refused


def load(path, bpe):
    return load_haystack(str(path), DataConfig(), bpe)


def test_a_folder_and_a_pattern_are_all_their_files(tmp_path, bpe):
    (tmp_path / "in").mkdir()
    three = "three ü\u2028\x85"  # line separators of Unicode, which end no line of JSON
    files = {"b.md": "two", "a.py": "one", "in/c.jsonl": f'{{"text": "{three}"}}\n\n', "no.png": "-", "no.txt": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert load(tmp_path, bpe) == f"one\ntwo\n{three}"
    assert load(tmp_path / "*.[mp]*", bpe) == "one\ntwo"


UNUSABLE = {
    "empty": ("a.txt", b"", "contains no text; "),
    "not_utf8": ("a.txt", b"\xff\xfe", "no text in UTF-8; "),
    "broken_json": ("a.json", b"{", "no text in UTF-8 in line 1; "),
    "broken_row": ("a.jsonl", b'{"text": "a"}\n\n{"text": ', "no text in UTF-8 in line 3; "),
    "jsonl_number": ("a.jsonl", b'{"text": "a"}\n{"text": 3}', "no text in UTF-8 in line 2; "),
}


@pytest.mark.parametrize(("name", "content", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, bpe, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    with refused(f"probe.haystack={path}: {reason}", error=DataError):
        load(path, bpe)


def test_the_synthetic_corpus_gives_fresh_filler(prepared):
    tokenizer = load_tokenizer(shard_folder(prepared))
    haystack = load_haystack(None, prepared, tokenizer)
    assert haystack == load_haystack(None, prepared, tokenizer)
    assert len(haystack.split()) > 30_000
    assert not re.search("magic|What are", haystack)
    documents = [
        ids for split in ("train", "held_out") for ids, _ in read_shard(shard_folder(prepared) / "task-00000", split)
    ]
    trained = {tokenizer.decode(ids)[:60] for ids in documents if len(ids) > 40}
    assert len(trained) > 30
    assert not [text for text in trained if text in haystack]


def test_any_other_corpus_gives_its_held_out_documents(tmp_path):
    texts = write_corpus(tmp_path / "corpus")
    config = text_config(tmp_path, held_out_frac=0.3)
    prepare(config, progress=False)
    tokenizer = load_tokenizer(shard_folder(config))
    kept = [ids for task in range(3) for ids, _ in read_shard(shard_folder(config) / f"task-{task:05d}", "held_out")]
    haystack = load_haystack(None, config, tokenizer)
    assert haystack == "\n".join(text for part in texts for text in part if [*tokenizer.encode(text).ids, 1] in kept)
    assert len(haystack.splitlines()) == len(kept) > 10
