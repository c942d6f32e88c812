"""A decoder of the lab behind lm-evaluation-harness's own class `hf`, which encodes, batches, scores and answers.

The harness calls a model as it calls one of transformers: for logits, and for greedy answers. Beside `hf`:

- a long context may lose its middle instead of its beginning: the first and the last half of the tokens that fit,
  rounded down, as in `pred.py` of LongBench (arXiv:2308.14508) and `truncate_input` of STRING's InfiniteBench
  (arXiv:2410.18745), which leave no room for the answer and encode the decoded halves again;
- a text that is scored alone begins with one token that begins a document, where `hf` has two (its issue 3333);
- text that spells a special token, as <eos>, is text, unless a chat template wrote it;
- prompts are not padded: those of one length are answered side by side, as distance methods need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from eval.engine.cases import Writer
from eval.engine.subject import Subject
from lab.data.tokenizer import check_ids, special_ends
from lab.errors import ConfigError, DataError
from lab.model.generate import greedy
from lab.model.huggingface.config import read_json, token_text

Ids = list[int]
Truncate = Literal["left", "middle"]
FILES = ("config", "generation_config", "tokenizer_config")
MOST_TOKENS = 4096  # of a text, where the training window is not known
SPECIAL = 4  # special tokens, which have no text, within a stop string
GREEDY = {"do_sample": (None, False), "num_beams": (None, 1)}  # settings of a task that change no greedy answer
IDLE = ("temperature", "top_p", "top_k", "attention_mask", "stopping_criteria", "pad_token_id", "use_cache")


class Served:
    """A decoder with the interface of a transformers model, as far as the harness calls it."""

    name_or_path = ""

    def __init__(self, subject: Subject, tokenizer: Any, stop_ids: Ids) -> None:
        self.subject, self.tokenizer, self.stop_ids = subject, tokenizer, stop_ids
        self.device, self.config = subject.device, SimpleNamespace(model_type="llama")

    def __call__(self, tokens: Tensor) -> SimpleNamespace:
        """Compute the logits: int64 (B, T) to float (B, T, V)."""
        check_ids([int(tokens.max())], self.subject.vocab_size)
        with torch.no_grad(), self.subject.computing():
            return SimpleNamespace(logits=self.subject.model.decoder(tokens).float())

    def generate(
        self, input_ids: Tensor, max_length: int, attention_mask: Tensor, stopping_criteria: Any, **settings: Any
    ) -> Tensor:
        """Answer prompts, padded on the left, greedily: int64 (B, T) to int64 (B, at most max_length).

        Raises: ConfigError, with a line for each setting that is not followed.
        """
        wrong = {key: value for key, value in settings.items() if key not in IDLE and value not in GREEDY.get(key, ())}
        if wrong:
            remedy = "answers are greedy; remove it from the task, or set do_sample: false"
            raise ConfigError(*(f"generation_kwargs.{key}={value}: {remedy}" for key, value in wrong.items()))
        stops = [criterion.sequence for criterion in stopping_criteria]
        budget, lengths = max_length - input_ids.shape[1], attention_mask.sum(1)
        answers = input_ids.new_full((len(input_ids), budget), self.stop_ids[0] if self.stop_ids else 0)
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().flatten()
            prompts = input_ids[rows, input_ids.shape[1] - length :]
            with self.subject.computing():
                found = greedy(
                    self.subject.model.decoder,
                    prompts,
                    budget,
                    self.subject.stop_id,
                    ended=lambda answers, _: self.ended(answers, stops),
                )
            answers[rows, : found.shape[1]] = found
        return torch.cat([input_ids, self.blanked(answers)], 1)

    def ended(self, answers: Tensor, stops: Sequence[str]) -> Tensor:
        """Find which answers end, with a token that ends a document or a text that holds a stop string.

        A stop string ends in the newest token and has no more tokens of text than bytes, so that a whole answer is
        decoded only where its last tokens hold one.

        Shapes: answers int64 (rows, n); returns bool (rows,).
        """
        reach = max((len(stop.encode()) for stop in stops), default=0) + SPECIAL

        def holds_stop(ids: Ids) -> bool:
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            return any(stop in text for stop in stops)

        rows = answers.tolist()
        return torch.tensor([r[-1] in self.stop_ids or (holds_stop(r[-reach:]) and holds_stop(r)) for r in rows])

    def blanked(self, answers: Tensor) -> Tensor:
        """Repeat the token that ends an answer to the end of its row, so that nothing after it is read as text."""
        over = torch.isin(answers, answers.new_tensor(self.stop_ids)).int().cummax(1).values.bool()
        return answers.masked_fill(over, self.stop_ids[0]) if self.stop_ids else answers


def harness_model(
    subject: Subject, folder: Path, *, length: int | None, truncate: Truncate, budget: int, batch: int, chat: bool
) -> Any:
    """Build a model of the harness from one of the lab that was opened in `folder`.

    Units: `length`, most tokens of a text, and `budget`, most of an answer where a task sets none, in tokens.

    Raises: LabError.
    """
    from lm_eval.models.huggingface import HFLM

    tokenizer, prefix_id, stop_ids = open_tokenizer(subject, folder, chat=chat)

    class LabModel(HFLM):  # type: ignore[misc]
        """The harness's class with the differences that the module's docstring lists."""

        max_gen_toks = budget
        eot_token_id = [*stop_ids, prefix_id][0]

        def tok_batch_encode(
            self, strings: Sequence[str], left_truncate_len: int | None = None, **_: Any
        ) -> tuple[Tensor, Tensor]:
            rows = [self.tok_encode(string) or [self.prefix_token_id] for string in strings]
            return padded([kept(ids, left_truncate_len or len(ids), truncate) for ids in rows])

        def _loglikelihood_tokens(self, requests: Sequence[Any], **options: Any) -> Any:
            # The last token of a continuation is only predicted.
            room = self.max_length + 1
            cut = [(key, kept(before, room - len(after), truncate), after) for key, before, after in requests]
            return super()._loglikelihood_tokens(cut, **options)

        def loglikelihood_rolling(self, requests: Sequence[Any], **options: Any) -> Any:
            self.add_bos_token: bool | None = False  # one token begins the document, and stands before the window
            try:
                return super().loglikelihood_rolling(requests, **options)
            finally:
                self.add_bos_token = None

    window = length or subject.model.train_len or MOST_TOKENS
    served: Any = Served(subject, tokenizer, stop_ids)
    settings = {"max_length": window, "prefix_token_id": prefix_id, "batch_size": batch}
    return LabModel(served, tokenizer=tokenizer, backend="causal", **settings)


def kept(ids: Ids, room: int, truncate: Truncate) -> Ids:
    """Return the tokens of a context that are read where `room` of them fit, at least one.

    Example:
        >>> kept([1, 2, 3, 4, 5], 3, "left"), kept([1, 2, 3, 4, 5], 3, "middle"), kept([1, 2], 1, "middle")
        ([3, 4, 5], [1, 5], [2])
    """
    if len(ids) <= room:
        return ids
    return ids[-room:] if truncate == "left" or room == 1 else ids[: room // 2] + ids[-(room // 2) :]


def padded(rows: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Pad rows on the left; return the tokens and which of them are not padding, int64 (B, T) both."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[0] * (longest - len(ids)) + ids for ids in rows])
    return tokens, torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in rows])


def open_tokenizer(subject: Subject, folder: Path, *, chat: bool) -> tuple[Any, int, Ids]:
    """Open a tokenizer of transformers; return it with the token that begins a document and those that end one.

    The files of a Hugging Face folder may name more tokens that end a document, as those of a chat's turns; a run
    folder has none.

    Raises: ConfigError for a folder without the chat template asked for; DataError for a tokenizer that neither begins
    nor ends a document.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config, generation, names = (read_json(folder / f"{name}.json") for name in FILES)
    find = subject.tokenizer.token_to_id
    begin, end = (find(token_text(names, key) or "") for key in ("bos_token", "eos_token"))
    listed = [subject.stop_id, config.get("eos_token_id"), generation.get("eos_token_id"), end]
    stops = dict.fromkeys(token for each in listed for token in (each if isinstance(each, list) else [each]))
    stop_ids = [token for token in stops if token is not None]
    prefix = [*special_ends(subject.tokenizer)[0][-1:], *([] if begin is None else [begin]), *stop_ids]
    if not prefix:
        raise DataError("tokenizer.json: no token begins or ends a document; set eos_token_id in config.json")
    if chat:
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError):  # none that transformers can open
            tokenizer = None
        if tokenizer is None or not tokenizer.chat_template:
            fault = "has no chat template (chat_template.jinja); leave it out, or use a model that was trained on chats"
            raise ConfigError(f"--apply_chat_template: {folder} {fault}")
        return tokenizer, prefix[0], stop_ids
    text: Mapping[str, Any] = {"bos_token": subject.tokenizer.id_to_token(prefix[0])}
    if stop_ids:
        text = {**text, "eos_token": subject.tokenizer.id_to_token(stop_ids[0])}
    own = Writer(subject.tokenizer).tokenizer
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=own, split_special_tokens=True, **text), prefix[0], stop_ids
