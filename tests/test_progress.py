"""The progress of training: plain lines in a file, a bar in a terminal, and an estimate that includes pauses."""

import io
import sys
from types import SimpleNamespace

import pytest

from lab import bars
from lab.train.callbacks.progress import Progress


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.fixture
def shown(monkeypatch):
    """Train 100 tokens in four steps, 1 s each, with a probe of 4 s after the first; return what is written."""

    def run(terminal):
        now, screen = [100.0], Screen(terminal)
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr("tqdm.std.time", lambda: now[0])
        monkeypatch.setattr(bars, "LOG_REFRESH_S", 0.5)
        experiment = SimpleNamespace(train=SimpleNamespace(steps=4, batch_tokens=25))
        module = SimpleNamespace(consumed=0, finished=True)
        bar = Progress(experiment, SimpleNamespace(latest={}), SimpleNamespace(latest=None))
        bar.on_train_start(SimpleNamespace(is_global_zero=True), module)
        bar.bar._time = lambda: now[0]
        for seconds in (1, 5, 1, 1):
            now[0] += seconds
            module.consumed += 25
            bar.on_train_batch_end(None, module, None, None, 0)
        bar.close()
        return screen.getvalue()

    return run


def test_a_file_gets_plain_lines(shown):
    text = shown(terminal=False)
    assert "\r" not in text
    assert "|" not in text
    assert text.splitlines()[2] == "train:  50% 50.0/100 [00:06<00:06]"  # 6 s for half of it, a probe included
    assert text.splitlines()[-1].startswith("train: 100% 100/100 [00:08<00:00]")


def test_a_terminal_gets_a_bar(shown):
    assert shown(terminal=True).count("\r") > 3
