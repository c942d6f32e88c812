"""How eval.harness encodes, scores and answers, against the decoder in a loop and by hand."""

from dataclasses import replace

import pytest
import torch
from tokenizers import processors

from eval.engine.subject import Subject
from eval.harness.model import open_tokenizer
from tests.eval.harness.parts import asked, by_loop, encoded, greedy_loop, make_model, subject_of

pytest.importorskip("lm_eval")
CONTEXTS = ("The magic", "One of the", "The numbers are", "mentioned in one", "What", "The", "in the texts below")


@pytest.mark.parametrize("family", [None, "gpt_neox"])
def test_prompts_of_one_length_are_answered_side_by_side_and_none_is_padded(family, subject, foreign, monkeypatch):
    prompts, generate = [], Subject.generate
    subject = subject if family is None else subject_of(foreign(family))
    monkeypatch.setattr(Subject, "generate", lambda s, ids, *a: (prompts.append(ids), generate(s, ids, *a))[1])
    found = asked(make_model(subject, batch=7), "generate_until", [(c, {"max_gen_toks": 5}) for c in CONTEXTS])
    wanted = sorted(encoded(subject, context) for context in CONTEXTS)
    assert sorted(row for each in prompts for row in each.tolist()) == wanted
    assert len(prompts) == len({len(ids) for ids in wanted})
    assert found == [subject.tokenizer.decode(greedy_loop(subject, encoded(subject, c), 5)) for c in CONTEXTS]
    inputs, targets = encoded(subject, CONTEXTS[0]), encoded(subject, " magic numbers")[-2:]
    model = make_model(subject)
    ((nats, likeliest),) = model._loglikelihood_tokens([(("", ""), inputs, targets)])
    assert (pytest.approx(nats, abs=1e-5), likeliest) == by_loop(subject, inputs, targets)


def test_the_tokens_that_begin_and_end_a_document(subject, tmp_path, monkeypatch):
    bos = subject.tokenizer.token_to_id("<bos>")
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7, 6]}')
    assert open_tokenizer(replace(subject, stop_id=9), tmp_path, template=None)[1:] == (bos, [9, 7, 6])
    bare = type(subject.tokenizer).from_str(subject.tokenizer.to_str())
    bare.post_processor = processors.ByteLevel(trim_offsets=False)
    subject = replace(subject, tokenizer=bare, stop_id=9)
    assert open_tokenizer(subject, tmp_path, template=None)[1:] == (9, [9, 7, 6])
    model = make_model(subject, tmp_path)
    answers, rules = torch.tensor([[5, 7, 8], [5, 8, 5]]), []
    monkeypatch.setattr(Subject, "generate", lambda *words: rules.append(words[-1]) or answers)
    mask = torch.ones(2, 1, dtype=torch.long)
    found = model._model_generate(torch.tensor([[3], [4]]), 4, ["zz"], attention_mask=mask)
    assert found.tolist() == [[3, 5, 9, 9], [4, 5, 8, 5]]
    assert rules[0](torch.tensor([[5, 7], [7, 5], [5, 6]]), None).tolist() == [True, False, True]
