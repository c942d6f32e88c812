"""Generation by CUDA graphs, whose stand-in records a pass and replays it, against whole passes."""

import logging

import pytest
import torch

from lab.model.attention import devices
from lab.model.attention.rotary import Rotation
from lab.model.generation import generate, graphs
from lab.model.generation.generate import greedy, layout_of_steps
from tests.model.methods import DYNAMIC, FREQUENCIES, decoder, every_distance, tokens
from tests.model.stand_ins.graphs import graphs_on_cpu
from tests.model.test_generate import by_whole_passes, up_to
from tests.model.test_waits import Copies


@pytest.fixture
def captured(monkeypatch):
    """Let the CPU answer for a GPU whose memory holds whatever was there before."""
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    monkeypatch.setattr(generate, "free_bytes", lambda device: 1 << 30)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    with graphs_on_cpu() as made:
        yield made
    torch.use_deterministic_algorithms(False)


@every_distance
def test_answers_of_replays_are_those_of_whole_passes(captured, method):
    model, prompts = decoder(FREQUENCIES["entropy_abf"], method), tokens(1, 2, 9)  # its factor follows the position
    assert greedy(model, prompts, 10).tolist() == by_whole_passes(model, prompts, 10).tolist()
    assert len(captured) == 1


def test_rows_that_have_stopped_leave_the_graph(captured):
    model, prompts = decoder(), tokens(2, 10, 11, vocab=9)
    whole = by_whole_passes(model, prompts, 16)
    stop_id = int(whole.flatten().mode()[0])
    assert up_to(stop_id, greedy(model, prompts, 16, stop_id)) == up_to(stop_id, whole)
    assert len(captured) > 1


def test_a_pass_reads_nothing_from_the_host(monkeypatch):
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # torch knows no autocast for this device
    model = decoder(FREQUENCIES["yarn"], dtype=torch.bfloat16)
    cache = model.new_cache(2, 20)
    model.to("meta")
    cache.device = torch.device("meta")
    cache.length = 6
    coming = layout_of_steps(model, torch.zeros(1, 10, dtype=torch.int64, device="meta"), cache)
    number = torch.zeros(1, dtype=torch.int64, device="meta")
    with torch.no_grad(), Copies() as copies:
        layout = graphs.static_step(coming, number, torch.arange(20, device="meta"))
        cache.place = layout.q_pos
        model(number.expand(2)[:, None], cache=cache, layout=layout, last_only=True)
    assert (copies.waiting, copies.queued, copies.reads) == ([], 0, 0)


def test_a_capture_that_fails_is_reported_once_and_changes_no_answer(captured, monkeypatch, caplog):
    model, prompts = decoder(), tokens(3, 2, 9)
    expected = by_whole_passes(model, prompts, 10).tolist()
    monkeypatch.setattr(
        Rotation, "select", lambda rotation, numbers: rotation.at(slice(int(numbers), int(numbers) + 1))
    )
    graphs.report.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert greedy(model, prompts, 10).tolist() == expected == greedy(model, prompts, 10).tolist()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "_local_scalar_dense" in caplog.text


@pytest.mark.parametrize(("settings", "n_tokens"), [({"rotary": DYNAMIC}, 12), ({"backend": "reference"}, 12), ({}, 4)])
def test_what_no_graph_can_or_need_run_is_not_captured(captured, settings, n_tokens):
    model, prompts = decoder(**settings), tokens(4, 2, 9)
    assert greedy(model, prompts, n_tokens).tolist() == by_whole_passes(model, prompts, n_tokens).tolist()
    assert captured == []
