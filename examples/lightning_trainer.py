"""Watch a model in Lightning's Trainer: position frequency, retrieval demand and retrieval range.

    python examples/lightning_trainer.py

It runs on a CPU in a minute and prints a table.
"""

import lightning
import torch
from torch.utils.data import DataLoader

from lab.data.config import Synthetic
from lab.data.tokenizer import train_bpe
from lab.integrations.lightning import ReachCallback
from lab.model.decoder import Decoder, DecoderConfig

STEPS, WINDOW, VOCABULARY = 40, 192, 512


class Module(lightning.LightningModule):
    """A module whose training step calls `self.model`, which the callback watches."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"d_model": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "d_ff": 128, "tie_embeddings": False}
        self.model = Decoder(DecoderConfig(vocab_size=VOCABULARY, **sizes))

    def training_step(self, rows: torch.Tensor, _: int) -> torch.Tensor:
        logits = self.model(rows[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main() -> None:
    """Train on rows of generated documents, and print what the watcher has counted and measured."""
    corpus = Synthetic(documents=400, median_tokens=100)
    texts = [corpus.document(number) for number in range(400)]
    tokenizer = train_bpe(texts, VOCABULARY)
    ids = [token for text in texts for token in tokenizer.encode(text).ids]
    rows = torch.tensor(ids[: len(ids) // (WINDOW + 1) * (WINDOW + 1)]).view(-1, WINDOW + 1)
    callback = ReachCallback(tokenizer, window=WINDOW, every_steps=STEPS // 2, tests=8, input="tokens")
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), DataLoader(rows, batch_size=4))
    print(callback.watch.probe(tests=8))


if __name__ == "__main__":
    main()
