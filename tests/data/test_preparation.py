from lab.data.config import Bpe, DataConfig
from lab.data.preparation import is_prepared, prepare, prepare_missing, shard_folder
from lab.data.tokenizer import assign_split
from tests.data.stores import folder_bytes, refused, text_config, write_corpus


def test_a_run_prepares_a_small_text_and_no_larger_one(tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path / "corpus")
    config = text_config(tmp_path)
    folder = shard_folder(config)
    n_bytes = sum(path.stat().st_size for path in (tmp_path / "corpus").iterdir())
    monkeypatch.setattr("lab.data.preparation.SMALL_BYTES", n_bytes - 1)
    with refused(f"data.corpus.name=text: not prepared in {folder}"):
        prepare_missing(config)
    assert not folder.exists()
    monkeypatch.setattr("lab.data.preparation.SMALL_BYTES", n_bytes)
    for told in (f"data: not prepared yet; preparing {folder}\n", ""):
        prepare_missing(config)
        assert capsys.readouterr().out == told
    assert is_prepared(config)


def test_the_split_of_a_text_is_random_and_its_own():
    """Of 2,000 texts at 0.3, 600 are expected; the standard deviation is sqrt(2,000 * 0.3 * 0.7) = 20.5."""
    texts = [f"text {number}" for number in range(2000)]
    held_out = [text for text in texts if assign_split(text, 0.3) == "held_out"]
    assert abs(len(held_out) - 600) < 82
    assert [text for text in reversed(texts) if assign_split(text, 0.3) == "held_out"] == held_out[::-1]


def test_the_synthetic_corpus_is_a_function_of_its_config_whatever_the_window(prepared, tmp_path):
    other = DataConfig(
        corpus=prepared.corpus, tokenizer=Bpe(vocab_size=400), window=96, held_out_frac=0.1, folder=str(tmp_path)
    )
    prepare(other, progress=False)
    assert other.shard_name == prepared.shard_name
    ours, theirs = (folder_bytes(shard_folder(config)) for config in (other, prepared))
    same = [name for name in ours if "/.segments" not in name]
    assert {name: ours[name] for name in same} == {name: theirs.get(name) for name in same}
