"""The data of a run: the anchor of a tokenizer without a first token."""

from dataclasses import replace

from tokenizers import Tokenizer, models, pre_tokenizers

from lab.data.config import TokenizerFile
from lab.data.module import build_arrangement
from lab.data.preparation import prepare
from lab.masks import Anchor, Arrangement
from tests.data.stores import module_of, text_config
from tests.data.windows import IGNORE


def test_the_anchor_is_what_ends_documents_where_nothing_begins_them(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "b": 2}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("a b a b b")
    words = TokenizerFile(path=str(tmp_path / "words.json"), eos="<end>")
    config = replace(text_config(tmp_path, tokenizer=words, mode="concatenated", held_out_frac=0.0), window=7)
    prepare(config, progress=False)
    assert build_arrangement(config, Anchor()) == Arrangement(mask=Anchor(), anchor=0)
    data = module_of(config, seed=0, micro_batch_tokens=7, mask=Anchor())
    data.setup()
    pack = next(data.stream(0))
    assert (pack.tokens.tolist(), pack.lengths, pack.anchors) == ([0, 1, 2, 1, 2, 2, 0], (1, 6), (-1, 0))
    assert pack.targets.tolist() == [IGNORE, 2, 1, 2, 2, 0, IGNORE]
