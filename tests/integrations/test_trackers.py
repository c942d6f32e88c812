"""What trackers, files and pictures have of a probe, read back, and how a Trainer selects by it."""

import json

import lightning
import pandas as pd
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from PIL import Image
from torch import nn
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader

import lab
from eval import compare
from lab.analysis.table import read_result_table
from lab.core.errors import ConfigError
from lab.data.preparation import shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.integrations.lightning import ReachCallback as LightningReach
from lab.integrations.trackers import log_probe
from lab.integrations.watcher import Watcher
from tests.integrations.test_callbacks import VOCABULARY, WINDOW, Module, collate_padded, llama, texts, trainer_of

transformers = pytest.importorskip("transformers")
NAMES = ["distance", "n", "score", "low", "high", "log_prob", "f", "g"]


@pytest.fixture(scope="module")
def tokenizer(prepared):
    return load_tokenizer(shard_folder(prepared))


def train_by_transformers(folder, tokenizer, tracker):
    from lab.integrations.transformers import ReachCallback

    callback = ReachCallback(window=WINDOW, every_steps=2, tests=2)
    trainer_of(folder / "out", tokenizer, collate_padded, 4, llama(), [callback], report_to=[tracker]).train()
    return callback.watch


def train_by_lightning(folder, tokenizer, tracker):
    logger = TensorBoardLogger(folder) if tracker == "tensorboard" else WandbLogger(save_dir=folder, offline=True)
    callback = LightningReach(tokenizer, window=WINDOW, every_steps=2, tests=2)
    options = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_steps=4, accelerator="cpu", logger=logger, callbacks=[callback], **options)
    trainer.fit(Module(), DataLoader([{"input_ids": text} for text in texts()], 2, collate_fn=collate_padded))
    logger.finalize("success")
    return callback.watch


def read_tensorboard(folder):
    """Return the rows of the tables, and the pictures."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = folder.rglob("events.out.tfevents*")
    events = EventAccumulator(str(file), {"tensors": 0, "images": 0})
    events.Reload()
    tables, pictures = [], []
    for event in events.Tensors("retrieval/table/text_summary"):
        text = event.tensor_proto.string_val[0].decode()
        heading, _, *lines = [line.strip("|").split("|") for line in text.splitlines()]
        assert [name.strip() for name in heading] == NAMES
        tables.append([[float(cell) for cell in line] for line in lines])
    for number, event in enumerate(events.Images("retrieval/figure")):
        pictures.append(folder / f"{number}.png")
        pictures[-1].write_bytes(event.encoded_image_string)
    steps = [
        event.step
        for event in events.Scalars(next(name for name in events.Tags()["scalars"] if "retrieval/accuracy" in name))
    ]
    assert [event.step for event in events.Images("retrieval/figure")] == steps
    return tables, pictures


def read_wandb(folder):
    import wandb

    wandb.finish()
    (media,) = folder.glob("wandb/offline-run-*/files/media")
    files = sorted(media.glob("table/retrieval/*.json"), key=lambda path: int(path.name.split("_")[1]))
    tables = [json.loads(path.read_text()) for path in files]
    assert all(table["columns"] == NAMES for table in tables)
    return [table["data"] for table in tables], [*media.glob("images/retrieval/*.png")]


@pytest.mark.parametrize("train", [train_by_transformers, train_by_lightning])
@pytest.mark.parametrize(("tracker", "read"), [("tensorboard", read_tensorboard), ("wandb", read_wandb)])
def test_a_tracker_has_each_probe(tmp_path, tokenizer, monkeypatch, recwarn, train, tracker, read):
    pytest.importorskip(tracker)
    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path))
    watch = train(tmp_path, tokenizer, tracker)
    tables, pictures = read(tmp_path)
    assert len(tables) == len(pictures) == len(watch.tables) == 2
    for rows, table in zip(tables, watch.tables, strict=True):
        assert [value for row in rows for value in row] == pytest.approx(table.to_numpy().ravel(), rel=1e-5)
    for picture in pictures:
        with Image.open(picture) as image:
            assert min(image.size) > 300
            assert len(image.convert("RGB").getcolors(2**20)) > 10
    assert not [one for one in recwarn if "tracker" in str(one.message)]


def test_the_best_model_is_selected_by_reach(tmp_path, tokenizer, monkeypatch):
    from lab.integrations.transformers import ReachCallback

    values = iter([{}, {"retrieval/reach": 90.0}, {"retrieval/reach": 70.0}])
    monkeypatch.setattr(Watcher, "summary", lambda self, tests: {"retrieval/accuracy": 0.5, **next(values)})
    callbacks = [ReachCallback(window=WINDOW, tests=1), transformers.EarlyStoppingCallback(1)]
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "best", "load_best_model_at_end": True}
    settings["metric_for_best_model"] = "retrieval/reach"
    trainer = trainer_of(tmp_path, tokenizer, collate_padded, 20, llama(), callbacks, **settings)
    trainer.train()
    state = trainer.state
    assert (state.best_metric, state.best_global_step, state.global_step) == (90.0, 4, 6)
    assert [row["step"] for row in state.log_history if "retrieval/accuracy" in row] == [2, 4, 6]
    assert not any("retrieval" in name for name in trainer.evaluate()), "of the last model, not of the loaded one"


class Copier(nn.Module):
    """Retrieves every number, but in every third prompt: teacher forcing shows it the next token."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, input_ids):
        logits = one_hot(input_ids.roll(-1, 1), VOCABULARY) * self.weight
        return logits * (input_ids.sum(1) % 3 > 0)[:, None, None]


def test_saved_probes_are_compared_and_plotted(tmp_path, tokenizer, capsys):
    watch = lab.watch(Copier().train(), tokenizer, window=WINDOW)
    assert repr(watch) == "Watcher(Copier, window=96, 0 tokens, not probed)"
    with pytest.raises(ConfigError, match="plot: has no probe"):
        watch.plot()
    first = watch.probe(tests=3)
    watch.model(torch.arange(WINDOW)[None]).sum().backward()
    table = watch.probe(tests=49)
    assert repr(watch).startswith("Watcher(Copier, window=96, 96 tokens, reach ")
    rows = pd.DataFrame(watch.plot().to_dict()["datasets"].popitem()[1])
    assert rows[["distance", "score", "f"]].to_numpy().tolist() == table[["distance", "score", "f"]].to_numpy().tolist()
    for name in ("one", "two"):
        watch.save(tmp_path / f"{name}.jsonl")
    results = read_result_table([tmp_path / "one.jsonl"]).rows
    assert results.metric.value_counts().to_dict() == {"accuracy": len(first) + len(table), "reach at 0.8": 2}
    last = results[results.tokens == WINDOW].query("metric == 'accuracy'")
    for name in ("distance", "score", "low", "high", "n"):
        assert last[name].tolist() == table[name].tolist()
    assert last.passed.tolist() == [round(49 * score) for score in table.score]
    assert 0 < last.passed.sum() < 49 * len(table)
    assert compare.main([str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")]) == 0
    assert {"one", "two", "reach"} <= set(capsys.readouterr().out.split())

    class Writer:
        add_image = None

    with pytest.warns(UserWarning, match="no table and no figure at the tracker: 'Writer' object"):
        log_probe(Writer(), watch, 1)
