"""Watch a transformers Trainer: position frequency, retrieval demand and retrieval range of a small Llama.

    python examples/transformers_trainer.py

It needs the extra `hf`, runs on a CPU in a minute and prints a table.
"""

import tempfile

from transformers import (
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from lab.data.config import Synthetic
from lab.data.tokenizer import train_bpe
from lab.integrations.transformers import ReachCallback

STEPS = 40


def main() -> None:
    """Train on generated documents in packed rows, and print what the watcher has counted and measured."""
    corpus = Synthetic(documents=400, median_tokens=100)
    texts = [corpus.document(number) for number in range(400)]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=train_bpe(texts, 512), eos_token="<eos>")
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    )
    rows = [{"input_ids": tokenizer(text)["input_ids"][:192]} for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            learning_rate=2e-3,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
        )
        callback = ReachCallback(window=192, every_steps=STEPS // 2, tests=8)
        trainer = Trainer(
            model,
            arguments,
            train_dataset=rows,
            data_collator=DataCollatorWithFlattening(),
            processing_class=tokenizer,
            callbacks=[callback],
        )
        trainer.train()
    print(callback.watch.probe(tests=8))


if __name__ == "__main__":
    main()
