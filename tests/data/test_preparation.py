import json
import shutil
from collections import Counter

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lab.data.config import Bpe, DataConfig, Text, TokenizerFile
from lab.data.preparation import is_prepared, prepare, shard_folder, verify
from lab.data.shards import ShardWriter, TokenStore, token_dtype
from lab.data.tokenizer import load_tokenizer
from lab.errors import DataError
from tests.data.stores import folder_bytes, read_shard, sentence, text_config, write_corpus

EOS = 1


def test_every_document_comes_back_in_order_with_its_source(made):
    config, texts = made
    folder = shard_folder(config)
    tokenizer = load_tokenizer(folder)
    for task, part in enumerate(texts):
        read = {split: read_shard(folder / f"task-{task:05d}", split) for split in ("train", "held_out")}
        for documents in read.values():
            decoded = [tokenizer.decode(ids) for ids, _ in documents]
            assert decoded == [text for text in part if text in decoded]
            assert {source for _, source in documents} == {f"part{task}"}
            for ids, _ in documents:
                assert ids[0] == 0
                assert ids[-1] == EOS
                assert ids.count(EOS) == 1
        assert len(read["train"]) + len(read["held_out"]) == len(part)


def test_a_text_that_spells_a_special_token_stays_text(tmp_path):
    (tmp_path / "corpus").mkdir()
    text = "a page about <eos> and <bos> tokens"
    rows = [json.dumps({"text": t}) for t in [text, "another page"]]
    (tmp_path / "corpus" / "a.jsonl").write_text("\n".join(rows))
    config = text_config(tmp_path, held_out_frac=0.0)
    prepare(config, progress=False)
    ids, _ = read_shard(shard_folder(config) / "task-00000", "train")[0]
    assert ids.count(EOS) == 1
    assert load_tokenizer(shard_folder(config)).decode(ids) == text


def test_an_end_token_that_its_file_does_not_mark_is_text_too(tmp_path, bpe):
    """An ordinary text has the same bytes by either file."""
    written = {}
    for special in (True, False):
        settings = json.loads(bpe.to_str())
        for token in settings["added_tokens"]:
            token["special"] = special or token["content"] == "<bos>"
        file = tmp_path / f"{special}.json"
        file.write_text(json.dumps(settings))
        for name, text in {"spelled": "a page about <eos> tokens", "ordinary": "a page, <b>bold</b>, 3 < 4"}.items():
            corpus = tmp_path / f"{name}.jsonl"
            corpus.write_text(json.dumps({"text": text}))
            choice = TokenizerFile(path=str(file), eos="<eos>")
            config = DataConfig(
                corpus=Text(path=str(corpus)), tokenizer=choice, held_out_frac=0.0, folder=str(tmp_path)
            )
            prepare(config, progress=False)
            shard = shard_folder(config) / "task-00000"
            ids, _ = read_shard(shard, "train")[0]
            assert (ids.count(1), ids[-1]) == (1, 1)
            assert load_tokenizer(shard.parent).decode(ids) == text
            written[name, special] = (shard / "train.tokens.bin").read_bytes()
    assert written["ordinary", True] == written["ordinary", False]
    assert written["spelled", True] == written["spelled", False]


def test_the_store_reads_what_the_bytes_hold(made):
    config, _ = made
    folder = shard_folder(config)
    for split in ("train", "held_out"):
        store = TokenStore.open(folder, split)
        raw = [ids for task in range(3) for ids, _ in read_shard(folder / f"task-{task:05d}", split)]
        assert [document.tolist() for document in store.documents()] == raw
        flat = [token for ids in raw for token in ids]
        assert (len([*store.documents()]), store.n_tokens) == (len(raw), len(flat))
        for start, length in [(0, 5), (0, len(flat)), (7, 300), (len(flat) - 3, 10), (len(flat), 4)]:
            assert store.read(start, length).tolist() == flat[start : start + length]


def test_the_manifest_says_what_is_there(made):
    config, texts = made
    for task, part in enumerate(texts):
        folder = shard_folder(config) / f"task-{task:05d}"
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["dtype"] == "<u2"
        for split, counts in manifest["splits"].items():
            documents = read_shard(folder, split)
            assert counts == {"documents": len(documents), "tokens": sum(len(ids) for ids, _ in documents)}
        assert sum(counts["documents"] for counts in manifest["splits"].values()) == len(part)
        named = {path.name: path.stat().st_size for path in folder.glob("[!.]*") if path.name != "manifest.json"}
        assert {name: file["bytes"] for name, file in manifest["files"].items()} == named


def test_skips_are_counted_by_reason_and_told(tmp_path):
    (tmp_path / "corpus").mkdir()
    unusable = [b'{"text": ""}', b'{"text": " "}', b"nonsense", b'{"txt": 1}', b'{"text": "\xe9"}']
    lines = [b'{"text": "a good line"}', *unusable]
    (tmp_path / "corpus" / "a.jsonl").write_bytes(b"\n".join(lines))
    done = prepare(text_config(tmp_path, held_out_frac=0.0), progress=False)
    assert done.skips == {"empty": 2, "not JSON": 1, "no text in field 'text'": 1, "not UTF-8": 1}
    assert done.documents == {"train": 1, "held_out": 0}
    assert done.summary.endswith("; left out: 2 empty, 1 no text in field 'text', 1 not JSON, 1 not UTF-8")


def test_copies_of_a_text_are_all_on_one_side(tmp_path):
    (tmp_path / "corpus").mkdir()
    for name in "abc":  # three files of the same 200 texts, in different orders
        numbers = sorted(range(200), key=lambda n, name=name: n * ord(name) % 211)
        rows = [json.dumps({"text": sentence(n)}) for n in numbers]
        (tmp_path / "corpus" / f"{name}.jsonl").write_text("\n".join(rows))
    config = text_config(tmp_path, held_out_frac=0.3)
    prepare(config, progress=False)
    counts = {}
    for split in ("train", "held_out"):
        shards = [shard_folder(config) / f"task-{task:05d}" for task in range(3)]
        counts[split] = Counter(tuple(ids) for shard in shards for ids, _ in read_shard(shard, split))
    assert not counts["train"].keys() & counts["held_out"].keys()
    assert {n for c in counts.values() for n in c.values()} == {3}
    # 200 texts at 0.3: 60 expected, standard deviation sqrt(200 * 0.3 * 0.7) = 6.5
    assert abs(len(counts["held_out"]) - 60) < 26


def test_nothing_is_held_out_when_the_share_is_zero(tmp_path):
    write_corpus(tmp_path / "corpus", files=1)
    config = text_config(tmp_path, held_out_frac=0.0)
    assert prepare(config, progress=False).documents == {"train": 40, "held_out": 0}
    with pytest.raises(DataError, match=r"no held_out documents; "):
        TokenStore.open(shard_folder(config), "held_out")


@pytest.mark.parametrize(("vocab_size", "dtype"), [(300, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (128_256, "<u4")])
def test_ids_take_the_narrowest_type_that_holds_them(vocab_size, dtype):
    assert token_dtype(vocab_size) == dtype


def test_a_large_vocabulary_comes_back_whole(tmp_path):
    vocab = {f"w{n}": n for n in range(65_999)} | {"<end>": 65_999}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("w5 w65535 w65536 w65998")
    choice = TokenizerFile(path=str(tmp_path / "words.json"), eos="<end>")
    corpus = Text(path=str(tmp_path / "corpus"))
    config = DataConfig(corpus=corpus, tokenizer=choice, held_out_frac=0.0, folder=str(tmp_path / "shards"))
    prepare(config, progress=False)
    shard = shard_folder(config) / "task-00000"
    assert json.loads((shard / "manifest.json").read_text())["dtype"] == "<u4"
    assert read_shard(shard, "train") == [([5, 65_535, 65_536, 65_998, 65_999], "a")]


def test_many_sources_are_kept(tmp_path):
    writer = ShardWriter(tmp_path / ".writing", "<u2")
    for number in range(2**16 + 1):  # one more than 16 bits hold
        writer.add("train", [2, EOS], f"site{number}")
    writer.close(tmp_path / "task-00000")
    assert len(read_shard(tmp_path / "task-00000", "train")) == 2**16 + 1


def test_what_a_kill_left_half_written_is_replaced(made):
    config, _ = made
    folder = shard_folder(config)
    before = folder_bytes(folder)
    shutil.rmtree(folder / "task-00002")
    half = folder / ".task-00002.tmp"
    half.mkdir()
    (half / "train.tokens.bin").write_bytes(b"\1\2\3")
    (half / "leftover").write_text("of another time")
    prepare(config, progress=False)
    assert folder_bytes(folder) == before


def test_workers_write_the_same_bytes(made, tmp_path):
    config, _ = made
    other = text_config(tmp_path, folder=str(tmp_path / "by_two"))
    prepare(other, workers=2, progress=False)
    assert folder_bytes(shard_folder(other)) == folder_bytes(shard_folder(config))


def test_shares_of_the_tasks_complete_to_the_same(made, tmp_path):
    config, _ = made
    other = text_config(tmp_path, folder=str(tmp_path / "by_shares"))
    prepare(other, tasks=range(1, 3, 2), progress=False)
    assert not is_prepared(other)
    prepare(other, tasks=range(0, 3, 2), progress=False)
    assert is_prepared(other)
    assert folder_bytes(shard_folder(other)) == folder_bytes(shard_folder(config))


def test_a_prepared_corpus_is_not_read_again(made):
    config, texts = made
    shutil.rmtree(config.corpus.path)
    assert is_prepared(config)
    verify(config)
    assert len([*TokenStore.open(shard_folder(config), "train").documents()]) > 0.7 * sum(map(len, texts))


def test_the_synthetic_corpus_is_a_function_of_its_config_whatever_the_window(prepared, tmp_path):
    other = DataConfig(
        corpus=prepared.corpus,
        tokenizer=Bpe(vocab_size=400, sample_documents=100),
        window=96,
        held_out_frac=0.1,
        folder=str(tmp_path),
    )
    prepare(other, progress=False)
    assert other.shard_name == prepared.shard_name
    ours, theirs = (folder_bytes(shard_folder(config)) for config in (other, prepared))
    for files in (ours, theirs):
        for name in [name for name in files if "/.segments" in name]:
            del files[name]
    assert ours == theirs
