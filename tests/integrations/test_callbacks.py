"""The callbacks in the trainers of transformers and Lightning: f and g of what the model received; the examples."""

import subprocess
import sys

import lightning
import pandas as pd
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from lab.core.errors import ConfigError
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


def trainer_of(folder, tokenizer, collator, steps, model=None, callbacks=None, model_init=None, **more):
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    settings = {"per_device_train_batch_size": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    settings |= {"logging_steps": 10, "save_steps": 10, **more}
    args = transformers.TrainingArguments(str(folder), max_steps=steps, **settings)
    rows = [{"input_ids": text} for text in texts()]
    data = {"data_collator": collator, "train_dataset": rows, "eval_dataset": rows[:2], "processing_class": fast}
    return transformers.Trainer(model, args, **data, callbacks=callbacks, model_init=model_init)


@pytest.mark.parametrize("batches", ["padded", "packed"])
def test_transformers_trainer_with_accumulation_and_a_resume(tmp_path, tokenizer, batches):
    from lab.integrations.transformers import ReachCallback

    collator = collate_padded if batches == "padded" else transformers.DataCollatorWithFlattening()
    model = llama()
    counted = Counted(model)
    trainer = trainer_of(tmp_path, tokenizer, collator, 20, model, gradient_accumulation_steps=2)
    callback = ReachCallback(window=WINDOW, every_steps=10, tests=2)
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
    again = llama()
    counted_again = Counted(again)
    other = ReachCallback(window=WINDOW, every_steps=30, tests=2)
    resumed = trainer_of(tmp_path / "other", tokenizer, collator, 30, again, [other], gradient_accumulation_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    sums = [a + b for a, b in zip(counted.f, counted_again.f, strict=True)]
    assert other.watch.frequency().tolist() == sums
    assert other.watch.incomplete is None


class Noted(transformers.TrainerCallback):
    """A tracker; it stops training after `last` steps."""

    def __init__(self, last=None):
        self.logs, self.last = [], last

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append((state.global_step, {key: value for key, value in logs.items() if "_per_" not in key}))

    def on_evaluate(self, args, state, control, **_):
        control.should_training_stop |= state.global_step == self.last


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"logging_steps": 2, "save_steps": 1},
        {"logging_steps": 3, "logging_first_step": True, "eval_strategy": "steps", "eval_steps": 2},
        {"logging_strategy": "epoch", "gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
    ],
)
def test_a_log_is_equal_without_the_callback_but_for_its_own_entries(tmp_path, tokenizer, settings, every):
    from lab.integrations.transformers import ReachCallback

    logs, histories = [], []
    for own in ([], [ReachCallback(window=WINDOW, every_steps=every, tests=1)]):
        noted = Noted()
        trainer = trainer_of(tmp_path, tokenizer, collate_padded, 4, llama(), [noted, *own], **settings)
        trainer.train()
        histories.append(trainer.state.log_history)
        logs.append(noted.logs)
    for without, those in (histories, ([values | {"step": step} for step, values in log] for log in logs)):
        own = [row for row in those if "retrieval/accuracy" in row]
        assert [row["step"] for row in own] == [step for step in range(1, 5) if step % every == 0]
        rest = [[{k: v for k, v in row.items() if "_per_" not in k and "runtime" not in k} for row in rows]
                for rows in (without, [row for row in those if row not in own])]  # fmt: skip
        assert rest[0] == rest[1]
        assert sum("loss" in row for row in without) >= 1


def test_a_model_made_in_training_is_watched_and_an_early_stop_probed(tmp_path, tokenizer):
    from lab.integrations.transformers import ReachCallback

    made = []

    def build():
        model = llama()
        made.append((model, Counted(model)))
        return model

    noted, callback = Noted(last=4), ReachCallback(window=WINDOW, every_steps=500, tests=1)
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    trainer = trainer_of(tmp_path, tokenizer, collate_padded, 9, None, [noted, callback], build, **settings)
    for _ in range(2):
        trainer.train()
        assert callback.watch.frequency().tolist() == made[-1][1].f
        assert [step for step, values in noted.logs if "retrieval/accuracy" in values] == [4] * (len(made) - 1)
    assert [len(model._forward_pre_hooks) for model, _ in made] == [1, 1, 2]


def test_a_checkpoint_without_counts_is_named(tmp_path, tokenizer, caplog):
    from lab.integrations.transformers import ReachCallback

    trainer_of(tmp_path, tokenizer, collate_padded, 2, llama(), save_steps=2).train()
    callback, model = ReachCallback(window=WINDOW, tests=1), llama()
    trainer = trainer_of(tmp_path, tokenizer, collate_padded, 3, model, [callback])
    counted = Counted(model)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert callback.watch.frequency().tolist() == counted.f
    assert "the checkpoint has none" in callback.watch.incomplete
    assert caplog.text.count("the checkpoint has none") == 1


def test_what_no_probe_can_do_is_rejected_before_training(tmp_path, tokenizer):
    from lab.integrations.transformers import ReachCallback

    with pytest.raises(ConfigError, match="every_steps=0: must be >= 1"):
        ReachCallback(window=WINDOW, every_steps=0)
    trainer = trainer_of(tmp_path, tokenizer, collate_padded, 2, llama(), [ReachCallback(window=WINDOW, tests=0)])
    with pytest.raises(ConfigError, match="tests=0: must be >= 1"):
        trainer.train()


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


class Wrapped(lightning.LightningModule):
    """A model within another module; with `every` it is optimized by hand, after every third batch."""

    def __init__(self, every=None):
        super().__init__()
        self.wrap, self.automatic_optimization = torch.nn.ModuleDict({"lm": llama()}), every is None
        self.wrap.lm = self.wrap["lm"]

    def training_step(self, batch, index):
        loss = self.wrap.lm(**batch).loss
        if not self.automatic_optimization and index % 3 == 2:
            self.optimizers().step()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.parametrize("by_hand", [False, True])
def test_lightning_probes_each_due_step_once_and_two_fits_leave_one_hook(tmp_path, tokenizer, by_hand):
    """Of 8 batches in an epoch by threes: 3 steps an epoch, of which the last has two batches; by hand 2."""
    callback = LightningReach(tokenizer, window=WINDOW, every_steps=3, tests=1, attribute="wrap.lm")
    module, lengths = Wrapped(every=3 if by_hand else None), [*map(len, texts(16))]
    loader = DataLoader([{"input_ids": text} for text in texts(16)], 2, collate_fn=collate_padded)
    for _ in range(2):
        trainer = lightning.Trainer(
            max_steps=6, accelerator="cpu", logger=CSVLogger(tmp_path), callbacks=[callback],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            accumulate_grad_batches=1 if by_hand else 3,
        )  # fmt: skip
        trainer.fit(module, loader)
        log = pd.read_csv(f"{trainer.logger.log_dir}/metrics.csv")
        assert log["retrieval/accuracy"].count() == 2
        assert len(module.wrap.lm._forward_pre_hooks) == 1
    seen = 2 * sum(lengths) + (sum(lengths[:12]) if by_hand else 0)
    assert callback.watch.frequency()[0] == seen
    trainer.fit_loop.epoch_loop.max_steps = 7
    trainer.fit(module, loader)
    assert callback.watch.frequency()[0] > seen, "the same Trainer continues"


def test_an_attribute_that_is_not_there_is_named(tmp_path, tokenizer):
    with pytest.raises(ConfigError, match="attribute=wrap.x: is not in Module; name the model"):
        LightningReach(tokenizer, window=WINDOW, attribute="wrap.x").on_train_start(None, Module())


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
