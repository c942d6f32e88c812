"""The data module: what stands in the place of the first token where a tokenizer has none."""

from tokenizers import Tokenizer, models, pre_tokenizers

from lab.data.arrangement import Arrangement
from lab.data.config import DataConfig, Text, TokenizerFile
from lab.data.module import build_arrangement
from lab.data.preparation import prepare
from lab.masks import Anchor
from tests.data.stores import module_of
from tests.data.windows import IGNORE


def test_the_anchor_is_what_ends_documents_where_nothing_begins_them(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "b": 2}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("a b a b b")
    config = DataConfig(
        corpus=Text(path=str(tmp_path / "corpus")),
        tokenizer=TokenizerFile(path=str(tmp_path / "words.json"), eos="<end>"),
        mode="concatenated",
        window=7,
        held_out_frac=0.0,
        folder=str(tmp_path / "shards"),
    )
    prepare(config, progress=False)
    assert build_arrangement(config, Anchor()) == Arrangement(mask=Anchor(), anchor=0)
    data = module_of(config, seed=0, micro_batch_tokens=7, mask=Anchor())
    data.setup()
    pack = next(data.stream(0))
    assert (pack.tokens.tolist(), pack.lengths, pack.anchors) == ([0, 1, 2, 1, 2, 2, 0], [1, 6], (-1, 0))
    assert pack.targets.tolist() == [IGNORE, 2, 1, 2, 2, 0, IGNORE]
