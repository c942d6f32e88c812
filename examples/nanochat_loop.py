"""Watch a model with nanochat's signature in a plain loop: position frequency, retrieval demand and retrieval range.

    python examples/nanochat_loop.py

nanochat's model returns a loss for `targets`, of which -1 has none, and logits without. A small model and tokenizer
stand for its own, as nanochat is no package. It runs on a CPU in a minute and prints a table.
"""

import torch
from tokenizers import Tokenizer

import lab
from lab.data.config import Synthetic
from lab.data.tokenizer import train_bpe
from lab.model.decoder import Decoder, DecoderConfig

STEPS, WINDOW, VOCABULARY = 40, 192, 512


class GPT(Decoder):
    """The lab's decoder behind nanochat's signature."""

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().forward(idx)
        if targets is None:
            return logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class HuggingFaceTokenizer:
    """A tokenizer behind the interface of nanochat's own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, prepend: int | None = None, append: int | None = None) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [token for token in (prepend, *ids, append) if token is not None]

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def main() -> None:
    """Train on rows of generated documents, and print what the watcher has counted and measured."""
    corpus = Synthetic(documents=400, median_tokens=100)
    texts = [corpus.document(number) for number in range(400)]
    tokenizer = HuggingFaceTokenizer(train_bpe(texts, VOCABULARY))
    ids = [token for text in texts for token in tokenizer.encode(text, prepend=0)]
    rows = torch.tensor(ids[: len(ids) // (WINDOW + 1) * (WINDOW + 1)]).view(-1, WINDOW + 1)
    sizes = {"d_model": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "d_ff": 128, "tie_embeddings": False}
    model = GPT(DecoderConfig(vocab_size=VOCABULARY, **sizes))
    watch = lab.watch(model, tokenizer, window=WINDOW, input="idx")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for batch in rows.split(4)[:STEPS]:
        model(batch[:, :-1], batch[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(watch.probe(tests=8))


if __name__ == "__main__":
    main()
