"""What goes wrong with lab.watch ends no training: it is logged once, counts are marked, and copies count nothing."""

import copy
import gc
import io
import logging
import re
import threading
import weakref

import pytest
import torch
from torch import nn

import lab
from lab.core.errors import ConfigError
from lab.data.preparation import shard_folder
from lab.data.tokenizer import load_tokenizer

T, WINDOW, VOCABULARY = 12, 96, 400
IDS = torch.arange(2 * T).view(2, T)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY)

    def forward(self, input_ids, labels=None):
        return self.head(self.embedding(input_ids))


class Wrapper(nn.Module):
    """Names no argument, as DeepSpeed's engine."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


class Outputs(Model):
    def forward(self, input_ids):
        return {"hidden": self.embedding(input_ids)}


WRAPPERS = {
    "none": lambda model: model,
    "DataParallel": nn.DataParallel,
    "a wrapper": Wrapper,
    "compiled": lambda model: torch.compile(model, backend="eager", fullgraph=True),
    "compiled in place": lambda model: model.compile(backend="eager") or model,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_count_and_train(name):
    model = WRAPPERS[name](Model())
    watch = lab.watch(model, window=WINDOW)
    model(IDS).sum().backward()
    assert (watch.frequency()[:2].tolist(), watch.incomplete) == ([2 * T, 2 * (T - 1)], None)
    model.eval()
    model(IDS).sum().backward()
    assert watch.frequency()[0] == 2 * T
    if name == "none":
        torch.compile(model.train(), backend="eager")(IDS).sum().backward()
        assert watch.frequency()[0] == 4 * T, "compiled after lab.watch"


def test_a_copy_and_a_file_of_a_watched_model_count_nothing():
    model = Model()
    watch = lab.watch(model, window=WINDOW)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        other(IDS).sum().backward()
    assert not watch.frequency().any()
    model(IDS).sum().backward()
    assert watch.frequency()[0] == 2 * T


@pytest.mark.parametrize("end", ["close", "with", "del"])
def test_nothing_keeps_a_model_that_is_watched_no_more(end):
    before, model = {*threading.enumerate()}, Model()
    watch = lab.watch(model, window=WINDOW)
    for _ in range(32):  # two lists for the thread
        model(IDS, labels=IDS).sum().backward()
    if end == "close":
        watch.close()
    elif end == "with":
        with watch as same:
            assert same is watch
    else:
        del watch
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None
    for thread in {*threading.enumerate()} - before:
        thread.join(5)
        assert not thread.is_alive()
    if end != "del":
        watch.close()
        assert watch.frequency()[:2].tolist() == [32 * 2 * T, 32 * 2 * (T - 1)]
        with pytest.raises(ConfigError, match="probe: .* after close"):
            watch.probe()


@pytest.mark.parametrize(
    ("window", "arguments", "message"),
    [
        (8, {}, "window=8: is shorter than a row of 12 tokens; raise it"),
        (WINDOW, {"labels": IDS[:, :5]}, r"labels=(2, 5): must be shaped as the tokens, (2, 12)"),
    ],
)
def test_an_error_of_the_watcher_is_logged_once_and_marked(caplog, window, arguments, message):
    model = Model()
    watch = lab.watch(model, window=window)
    for _ in range(2):
        model(IDS, **arguments).sum().backward()
    assert not watch.demand().any()
    assert message in watch.incomplete
    assert len(caplog.records) == 1
    assert message in caplog.text
    again = lab.watch(Model(), window=window)
    again.load_state_dict(watch.state_dict())
    assert again.incomplete == watch.incomplete


def test_an_error_in_the_hook_itself_is_no_error_of_the_forward(caplog, monkeypatch):
    model = Model()
    watch = lab.watch(model, window=WINDOW)
    monkeypatch.setattr(watch, "enqueue", lambda *_: 1 / 0)
    model(IDS).sum().backward()
    assert watch.incomplete == "ZeroDivisionError: division by zero"
    assert len(caplog.records) == 1


@pytest.mark.parametrize("value", [-1, 0, True, 2.5, "8"])
@pytest.mark.parametrize("name", ["window", "sliding_window", "attention_chunk_size"])
def test_a_wrong_option_is_named_at_once(name, value):
    with pytest.raises(ConfigError, match=f"^{name}=.?{value}.?: "):
        lab.watch(Model(), **{"window": WINDOW, name: value})
    with pytest.raises(ConfigError, match="input=inputs: "):
        lab.watch(Model(), window=WINDOW, input="inputs")


def test_logits_that_are_not_found_are_one_line(prepared, caplog):
    tokenizer = load_tokenizer(shard_folder(prepared))
    with caplog.at_level(logging.WARNING):
        table = lab.watch(Outputs(), tokenizer, window=WINDOW).probe(tests=1)
    assert table.empty
    (record,) = caplog.records
    assert re.match("no probe: logits: .* NoneType .*; .* logits=", record.getMessage())
    hidden = lab.watch(Outputs(), tokenizer, window=WINDOW, logits=lambda output: output["hidden"].repeat(1, 1, 100))
    assert len(hidden.probe(tests=1)) == 14
