"""Watch litgpt's GPT in a plain loop: position frequency, retrieval demand and retrieval range.

    pip install --no-deps 'litgpt==0.5.13'
    python examples/litgpt_loop.py

It runs on a CPU in a minute and prints a table.
"""

import json
import tempfile
from pathlib import Path

import torch
from litgpt import GPT, Config, Tokenizer

import lab
from lab.data.config import Synthetic
from lab.data.tokenizer import train_bpe

STEPS, WINDOW, VOCABULARY = 40, 192, 512


def main() -> None:
    """Train on rows of generated documents, and print what the watcher has counted and measured."""
    corpus = Synthetic(documents=400, median_tokens=100)
    texts = [corpus.document(number) for number in range(400)]
    with tempfile.TemporaryDirectory() as folder:  # as litgpt keeps them
        train_bpe(texts, VOCABULARY).save(f"{folder}/tokenizer.json")
        Path(folder, "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
        tokenizer = Tokenizer(folder)
    ids = torch.cat([tokenizer.encode(text) for text in texts]).long()
    rows = ids[: len(ids) // (WINDOW + 1) * (WINDOW + 1)].view(-1, WINDOW + 1)
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": VOCABULARY, "padded_vocab_size": VOCABULARY}
    model = GPT(Config(block_size=WINDOW, **sizes))
    watch = lab.watch(model, tokenizer, window=model.max_seq_length, input="idx")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for batch in rows.split(4)[:STEPS]:
        logits = model(batch[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(watch.probe(tests=8))


if __name__ == "__main__":
    main()
