"""Generation against whole forward passes without a cache, one for every token."""

import pytest
import torch

from lab.model import generate
from lab.model.generate import greedy
from tests.model.methods import DISTANCES, DYNAMIC, FREQUENCIES, decoder, every_kind, every_pair, tokens


@torch.no_grad()
def by_whole_passes(model, prompts, n_tokens):
    text = prompts
    for _ in range(n_tokens):
        text = torch.cat([text, model(text)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return text[:, prompts.shape[1] :]


def up_to(stop_id, answer):
    return [row[: row.index(stop_id) + 1] if stop_id in row else row for row in answer.tolist()]


def reads(model):
    """Record how many tokens each forward pass takes."""
    sizes = []
    model.embedding.register_forward_hook(lambda module, args, out: sizes.append(args[0].numel()))
    return sizes


@every_pair
def test_answers_are_those_of_whole_passes(method, rotary):
    model, prompts = decoder(rotary, method), tokens(1, 7, 19)
    assert greedy(model, prompts, 12).tolist() == by_whole_passes(model, prompts, 12).tolist()


@pytest.mark.parametrize("stops", [False, True], ids=["rule", "rule-and-stop-token"])
@every_kind
def test_answers_that_a_rule_ends(method, stops):
    model, prompts = decoder(FREQUENCIES["yarn"], method), tokens(2, 20, 11, vocab=9)
    prompts[4:9, :6] = prompts[4, :6].clone()
    whole = by_whole_passes(model, prompts, 14)
    ends = {token: len(set(map(len, up_to(token, whole)))) for token in whole.unique().tolist()}
    stop_id = max(ends, key=ends.get) if stops else None  # ends rows at as many times as any does
    for limit in (150, 300):
        shapes, rows = [], whole.tolist()  # cut after the token that brings the sum over the limit, or the stop token
        ends = [[sum(row[: n + 1]) > limit or token == stop_id for n, token in enumerate(row)] for row in rows]
        expected = [row[: end.index(True) + 1] if True in end else row for row, end in zip(rows, ends)]
        ended = lambda answers, _, most=limit, shapes=shapes: shapes.append([*answers.shape]) or answers.sum(-1) > most  # noqa: E731
        answer = greedy(model, prompts, 14, stop_id, ended=ended)
        assert len({len(row) for row in expected}) > 2
        assert answer.shape[1] == max(map(len, expected))
        assert [row[: len(own)] for row, own in zip(answer.tolist(), expected)] == expected
        after = {token for row, own in zip(answer.tolist(), expected) for token in row[len(own) :]}
        assert after == {stop_id or 0}
        assert shapes[0][0] == 20 - sum(len(own) == 1 and own[-1] == stop_id for own in expected)
        for n_rows, n in shapes:  # only rows that have not ended are asked about, once after each token
            alike = [own[-1] == stop_id and len(own) == n for own in expected]
            assert n_rows == sum(len(own) >= n for own in expected) - sum(alike)
        assert [n for _, n in shapes] == list(range(1, len(shapes) + 1))


def test_near_ties_come_out_alike_in_every_batch():
    model, prompts = decoder(dtype=torch.float32, vocab_size=60), tokens(0, 20, 24, vocab=30)
    noise = torch.randn(30, 32, generator=torch.Generator().manual_seed(0))  # every token has a twin
    model.head.weight.data[30:] = model.head.weight.data[:30] * (1 + 1e-7 * noise)
    prompts[5:10, :17] = prompts[5, :17].clone()
    alone = torch.cat([greedy(model, prompt[None], 6) for prompt in prompts])
    for size, stop_id in ((2, None), (7, 7), (20, None)):
        answers = [row for part in prompts.split(size) for row in up_to(stop_id, greedy(model, part, 6, stop_id))]
        assert answers == up_to(stop_id, alone)


def test_rows_that_are_sure_are_not_generated_again():
    model, prompts = decoder(dtype=torch.float32), tokens(10, 8, 20)
    sizes = reads(model)
    greedy(model, prompts, 6)
    assert sizes == [160] + [8] * 5
    logits = torch.tensor([[1.0, -4.0, 1.0 - 4 * 240 * 2.0**-23], [1.0, -4.0, 1.0 - 4 * 270 * 2.0**-23]])
    assert generate.has_near_tie(logits).tolist() == [True, False]  # 256 roundings of the largest logit, 4
    halves = decoder(dtype=torch.bfloat16)
    halves.head.weight.data[30:60] = halves.head.weight.data[:30]
    sizes = reads(halves)
    greedy(halves, prompts, 6)
    assert sizes == [160] + [8] * 5  # ties are not generated again


@every_kind
def test_memory_bounds_change_no_answer(method, monkeypatch):
    model, prompts = decoder(FREQUENCIES["yarn"], method), tokens(11, 9, 20)
    prompts[2:6, :8] = prompts[2, :8]
    expected = by_whole_passes(model, prompts, 7).tolist()
    row_bytes = model.new_cache(1, 27).n_elements * 8
    token_bytes = generate.bytes_per_token(model)
    made = []
    make = model.new_cache
    monkeypatch.setattr(model, "new_cache", lambda batch, n: made.append(batch) or make(batch, n))
    for rows, at_once in ((4, 60), (1, 3), (9, 1), (5, 10**6)):
        monkeypatch.setattr(generate, "CACHE_BYTES", rows * row_bytes)
        monkeypatch.setattr(generate, "ACTIVATION_BYTES", at_once * token_bytes)
        made.clear()
        sizes = reads(model)
        assert greedy(model, prompts, 7).tolist() == expected
        assert max(made) == rows
        assert max(sizes) <= max(at_once, rows)


@torch.no_grad()
def test_dynamic_ntk_places_all_cached_keys_anew_at_every_length():
    model, text = decoder(DYNAMIC, DISTANCES["string"]), tokens(4, 1, 20)
    one_layer = decoder(DYNAMIC, DISTANCES["string"], n_layers=1)
    cache = one_layer.new_cache(1, 20)
    for n in range(1, 21):  # one layer's keys know no position of their own, so that only their places matter
        out = one_layer(text[:, n - 1 : n], cache=cache)
        one_layer.frequencies = DYNAMIC.at_length(n)
        torch.testing.assert_close(out[:, -1], one_layer(text[:, :n])[:, -1], rtol=0, atol=1e-11)
        one_layer.frequencies = DYNAMIC
    fixed = DYNAMIC.at_length(20)
    assert torch.equal(model(text), decoder(fixed, DISTANCES["string"])(text))
    assert not torch.equal(DYNAMIC.inv_freq, fixed.inv_freq)
