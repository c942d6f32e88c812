"""The Python blocks of README and of the pages run as printed, with a model of tiny size in place of the reader's."""

import re

import lightning
import pytest
import torch

from tests.forked import ROOT
from tests.model.folders import SIZES

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
# What a page says, and what a model of this size has.
TINY = {"window=2048": "window=96", "step % 1000": "step % 2", "[1024": "[48", "every_steps=500": "every_steps=2"}
TINY |= {"tests=64": "tests=2", "...  # your": "steps()  # your", "42 * 1024": "42", "window=128": "window=8"}
TINY |= {'"window": 2048, "tests": 64': '"window": 96, "tests": 2', 'device="cuda"': 'device="cpu"'}
CALLS = {"README.md": 1, "docs/integrations.md": 5, "docs/extension.md": 1}


@pytest.fixture
def reader(bpe, tmp_path):
    """What a page expects: a model, its tokenizer, data, a trainer, and the folder of a model."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, "vocab_size": bpe.get_vocab_size(), "max_position_embeddings": 96})
    model = transformers.LlamaForCausalLM(config).train()
    folder = tmp_path / "Llama-3.1-8B"
    model.save_pretrained(folder)
    bpe.save(str(folder / "tokenizer.json"))
    (tmp_path / "essays.txt").write_text("The sky is blue and the grass is green. " * 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(5, 60, (4, 2, 96), generator=torch.Generator().manual_seed(0))
    loader = [{"input_ids": rows, "labels": rows} for rows in ids]

    def steps():
        for batch in loader:
            model(**batch).loss.backward()
            optimizer.step()

    documents = [[5] * 100] * 8  # of which rows have 96 tokens each
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe)
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[])
    trainer = transformers.Trainer(model, arguments, processing_class=tokenizer)
    return {"lightning": lightning, "__name__": "page", **locals()}


@pytest.mark.parametrize("page", CALLS)
def test_the_blocks_of_a_page_run(page, reader, monkeypatch, capsys):
    monkeypatch.chdir(reader["tmp_path"])
    text = (ROOT / page).read_text()
    for large, small in TINY.items():
        text = text.replace(large, small)
    texts = BLOCK.findall(text)
    assert len(texts) == CALLS[page]
    for text in texts:
        exec(compile(text, page, "exec"), reader)
    if page == "docs/extension.md":
        assert torch.isfinite(reader["decoder"](torch.tensor([[5, 6, 7]]))).all()
    elif page == "README.md":
        assert capsys.readouterr().out.count("\n") == 2, "a line of two probes"
    else:
        # four forwards of two rows of 96 tokens, each a document: 96 - i pairs at a distance of i
        assert reader["watch"].frequency().tolist() == [8 * (96 - i) for i in range(96)]
        assert reader["table"].attrs["reach"] is None or reader["table"].attrs["reach"] > 0
        assert reader["dropped"].attrs == {"kept": 768, "cut": 32}
        assert reader["dropped"].f_lost.tolist() == [8 * 4] * 96
        assert reader["results"]["results"]["lab_reach"]["score@24,none"] >= 0
        assert any("ReachCallback" in type(one).__name__ for one in reader["trainer"].callbacks)
