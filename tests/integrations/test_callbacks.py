"""The callbacks in the trainers of transformers and Lightning: f and g of what the model received; the examples."""

import json
import subprocess
import sys

import lightning
import pytest
import torch
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from lab.data.preparation import shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.integrations.lightning import ReachCallback as LightningReach
from tests.evidence import brute
from tests.forked import ROOT

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

WINDOW, VOCABULARY, N = 96, 400, 3


@pytest.fixture(scope="module")
def tokenizer(prepared):
    return load_tokenizer(shard_folder(prepared))


def texts(n=40):
    generator = torch.Generator().manual_seed(10)
    lengths = torch.randint(3, 90, (n,), generator=generator).tolist()
    return [torch.randint(5, 12, (length,), generator=generator).tolist() for length in lengths]


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCABULARY, **sizes))


class Counted:
    """What a model received in training, counted by definition from the rows themselves."""

    def __init__(self, model):
        self.f, self.g = [0] * WINDOW, [0] * WINDOW
        model.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, model, args, kwargs):
        if not model.training:
            return
        ids, labels = kwargs["input_ids"], kwargs["labels"]
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        for row in range(len(ids)):
            end = ids.shape[1] if mask is None else int(mask[row].sum())  # padding is on the right
            starts = [t for t in range(end) if t == 0 or (positions is not None and positions[row, t] == 0)]
            for start, stop in zip(starts, [*starts[1:], end], strict=True):
                self.add(ids[row, start:stop].tolist(), labels[row, start + 1 : stop + 1].tolist())

    def add(self, run, targets):
        for d in range(len(run)):
            self.f[d] += len(run) - d
        targets = [*targets, brute.IGNORE][: len(run)]
        for d, n in brute.demand(run, targets, [len(run)], lambda r, place: brute.repeat(r, place, N)).items():
            self.g[d] += n


def collate_padded(rows):
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    mask = pad_sequence([torch.ones_like(own) for own in ids], batch_first=True)
    labels = pad_sequence(ids, batch_first=True, padding_value=-100)
    return {"input_ids": pad_sequence(ids, batch_first=True), "attention_mask": mask, "labels": labels}


def trainer_of(folder, tokenizer, collator, steps, model, **more):
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    settings = {"per_device_train_batch_size": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True, **more}
    args = transformers.TrainingArguments(str(folder), max_steps=steps, logging_steps=10, save_steps=10, **settings)
    rows = [{"input_ids": text} for text in texts()]
    return transformers.Trainer(model, args, data_collator=collator, train_dataset=rows, processing_class=fast)


@pytest.mark.parametrize("batches", ["padded", "packed"])
def test_transformers_trainer_with_accumulation_and_a_resume(tmp_path, tokenizer, batches):
    from lab.integrations.transformers import COUNTS, ReachCallback

    collator = collate_padded if batches == "padded" else transformers.DataCollatorWithFlattening()
    model = llama()
    counted = Counted(model)
    trainer = trainer_of(tmp_path, tokenizer, collator, 20, model, gradient_accumulation_steps=2)
    callback = ReachCallback(trainer, window=WINDOW, every_steps=10, tests=2)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.watch.frequency().tolist() == counted.f
    assert callback.watch.demand().tolist() == counted.g
    assert sum(counted.g) > 20
    logged = [row for row in trainer.state.log_history if "retrieval/accuracy" in row]
    assert [row["step"] for row in logged] == [10, 20]
    halves = [counted.f[WINDOW // 2], sum(counted.g[WINDOW // 2 :])]
    assert [logged[1][f"retrieval/{name}_half"] for name in "fg"] == halves
    assert min(counted.f[WINDOW // 2], counted.g[WINDOW // 2]) > 0
    assert json.loads((tmp_path / "checkpoint-20" / COUNTS).read_text())["lengths"]
    again = llama()
    counted_again = Counted(again)
    resumed = trainer_of(tmp_path, tokenizer, collator, 30, again, gradient_accumulation_steps=2)
    other = ReachCallback(resumed, window=WINDOW, every_steps=30, tests=2)
    resumed.add_callback(other)
    resumed.train(resume_from_checkpoint=True)
    sums = [a + b for a, b in zip(counted.f, counted_again.f, strict=True)]
    assert other.watch.frequency().tolist() == sums
    assert other.watch.incomplete is None


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = llama()

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(folder, tokenizer, steps, resume=None, **more):
    """Train by Lightning; return the callback, what was counted by definition, and what was logged."""
    module = Module()
    counted = Counted(module.model)
    callback = LightningReach(tokenizer, window=WINDOW, every_steps=15, tests=2)
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, callbacks=[callback], default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
        enable_checkpointing=False, **{"devices": 1, **more},
    )  # fmt: skip
    loader = DataLoader([{"input_ids": text} for text in texts(120)], 2, collate_fn=collate_padded)
    trainer.fit(module, loader, ckpt_path=resume)
    trainer.save_checkpoint(folder / "last.ckpt")
    return callback, counted, trainer.callback_metrics


def test_lightnings_trainer_and_a_resume(tmp_path, tokenizer):
    callback, counted, logged = fit(tmp_path, tokenizer, 30)
    assert callback.watch.frequency().tolist() == counted.f
    assert callback.watch.demand().tolist() == counted.g
    assert logged["retrieval/f_half"] == counted.f[WINDOW // 2]
    again, counted_again, _ = fit(tmp_path, tokenizer, 45, tmp_path / "last.ckpt")
    assert again.watch.frequency().tolist() == [a + b for a, b in zip(counted.f, counted_again.f, strict=True)]


def fit_on_ranks(folder, tokenizer_path):
    """Train 30 steps as one of two ranks; return what it counted, what it should, the sums, and what it logged."""
    from lightning.pytorch.strategies import DDPStrategy

    tokenizer = Tokenizer.from_file(tokenizer_path)
    strategy = DDPStrategy(process_group_backend="gloo")
    callback, counted, logged = fit(folder, tokenizer, 30, strategy=strategy, devices=2)
    watch = callback.watch
    total = watch.frequency(reduce=True).tolist(), watch.demand(reduce=True).tolist()
    return (watch.frequency().tolist(), watch.demand().tolist()), (counted.f, counted.g), total, dict(logged)


@pytest.mark.slow
def test_lightnings_trainer_on_two_processes(tmp_path, prepared, tokenizer, ranks):
    results = ranks(2).run(fit_on_ranks, tmp_path, str(shard_folder(prepared) / "tokenizer.json"))
    sums = [[a + b for a, b in zip(*counts, strict=True)] for counts in zip(*(r[1] for r in results), strict=True)]
    assert results[0][1] != results[1][1]  # each rank has its own rows
    for own, counted, total, logged in results:
        assert own == counted
        assert list(total) == sums
        assert logged["retrieval/f_half"] == sums[0][WINDOW // 2]
    assert sum(sums[1]) > 20
    again, counted_again, _ = fit(tmp_path, tokenizer, 45, tmp_path / "last.ckpt")
    assert again.watch.frequency().tolist() == [a + b for a, b in zip(sums[0], counted_again.f, strict=True)]


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_prints_its_table(path):
    if path.stem.startswith("litgpt"):
        pytest.importorskip("litgpt", reason="pip install --no-deps 'litgpt==0.5.13'")
    done = subprocess.run([sys.executable, path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "log_prob" in done.stdout
