"""What the tests of eval.harness share: its parts on a small model, scripted answers, local tasks, and its files."""

import json
from contextlib import nullcontext
from pathlib import Path

import torch

from eval.harness.answers import Speaker
from eval.harness.encoding import Encoder, Ends
from eval.harness.model import Responder
from eval.harness.requests import FinishedRequests
from eval.harness.scoring import Scorer
from lab.model.generation.generate import greedy

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "tests/eval/harness_tasks"
ROUNDING = 1e-5  # nats: float32 passes over other rows


def documents(name):
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text().splitlines()]


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_in(folder, task, filtered=None):
    rows = [row for row in read_lines(folder / "harness.jsonl") if row["task"] == task]
    return {row["metric"]: row for row in rows if filtered in (None, row["filter"])}


def make_encoder(model, max_length=64, **options):
    stop = model.tokenizer.token_to_id("<eos>")
    return Encoder(model.tokenizer, Ends((), (stop,)), max_length, model.decoder.cfg.vocab_size, **options)


def make_scorer(model, max_length=64, rows=3):
    return Scorer(model.decoder, make_encoder(model, max_length), nullcontext, lambda n: rows, torch.device("cpu"))


def make_speaker(model, max_length=64, rows=3, budget=16):
    encoder = make_encoder(model, max_length)

    def generate(prompts, n_tokens, ended):
        return greedy(model.decoder, prompts, n_tokens, encoder.stop_ids[0], ended=ended)

    return Speaker(encoder, generate, lambda n: rows, budget)


def make_responder(model, folder, max_length=64):
    finished = FinishedRequests(folder / "requests.jsonl")
    return Responder(make_scorer(model, max_length), make_speaker(model, max_length), finished)


def values(batches):
    """Gather what comes out in batches, in the requests' order."""
    found = {}
    for batch in batches:
        assert not found.keys() & batch.keys(), "a request came out twice"
        found |= batch
    return [found[number].value for number in range(len(found))]


def by_loop(model, inputs, targets):
    """The log-likelihood and the greedy flag, one prefix at a time, without batches or shared passes."""
    nats, likeliest, seen = 0.0, True, list(inputs)
    for target in targets:
        with torch.no_grad():
            logits = model.decoder(torch.tensor([seen]))[0, -1].double()
        nats += float(torch.log_softmax(logits, -1)[target])
        likeliest = likeliest and int(logits.argmax()) == target
        seen.append(target)
    return nats, likeliest


def encoded(model, text):
    return model.tokenizer.encode(text).ids  # <bos> before, nothing after
