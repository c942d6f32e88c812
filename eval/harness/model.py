"""A decoder of the lab behind lm-evaluation-harness's own class `hf`, which encodes, batches, scores and answers.

The harness asks it for logits, and for greedy answers. In addition to `hf`:

- a long context may lose its middle instead of its beginning. The first and the last half of the tokens that fit
  remain, rounded down, as in `pred.py` of LongBench (arXiv:2308.14508) and `truncate_input` of STRING's InfiniteBench
  (arXiv:2410.18745). Those leave no room for the answer and encode the decoded halves again;
- a text that is scored alone begins with one token that begins a document, where `hf` has two (its issue 3333);
- text that spells a special token, as <eos>, is text, except in chats with a Hugging Face folder;
- prompts are not padded: those of one length are answered side by side, as distance methods need.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eval.engine import cases
from eval.engine.subject import Subject
from lab.core.errors import ConfigError, DataError
from lab.data.tokenizer import check_ids, special_ends
from lab.model.attention.inspection import check_finite
from lab.model.huggingface.config import read_json, special_texts

Ids = list[int]
Truncate = Literal["left", "middle"]
SPECIAL = 4  # special tokens, which have no text, within a stop string


def harness_model(subject: Subject, folder: Path, options: Any) -> Any:
    """Build a model of the harness from one of the lab that was opened in `folder`; the command has the `options`."""
    from lm_eval.models.huggingface import HFLM

    tokenizer, prefix_id, stop_ids = open_tokenizer(subject, folder, options.template(subject))
    window = options.max_length or subject.model.train_len

    class LabModel(HFLM):  # type: ignore[misc]
        """The harness's class with the differences that the module's docstring lists."""

        cut = 0  # contexts that were too long
        eot_token_id = [*stop_ids, prefix_id][0]

        def tok_batch_encode(
            self, strings: Sequence[str], left_truncate_len: int, **_: object
        ) -> tuple[Tensor, Tensor]:
            tokens = []
            for string in strings:
                # An empty text is the token that begins a document, as in `hf`.
                ids = self.tok_encode(string) or [self.prefix_token_id]
                tokens.append(torch.tensor(self.fitted(ids, left_truncate_len)))
            padded = partial(pad_sequence, batch_first=True, padding_side="left")
            return padded(tokens), padded([torch.ones_like(row) for row in tokens])

        def _loglikelihood_tokens(self, requests: Sequence[Any], **kwargs: Any) -> Any:
            # The last token of a continuation is only predicted.
            room = self.max_length + 1
            fitting = [(key, self.fitted(before, room - len(after)), after) for key, before, after in requests]
            return super()._loglikelihood_tokens(fitting, **kwargs)

        def fitted(self, ids: Ids, room: int) -> Ids:
            self.cut += len(ids) > room
            return truncate_ids(ids, room, options.truncate)

        def loglikelihood_rolling(self, requests: Sequence[Any], **kwargs: Any) -> Any:
            # The harness itself puts the token that begins a document before the window: `hf` would add a second one.
            self.add_bos_token: bool | None = False
            try:
                return super().loglikelihood_rolling(requests, **kwargs)
            finally:
                self.add_bos_token = None

        def _model_call(self, inps: Tensor, **_: object) -> Tensor:
            check_ids([int(inps.max())], subject.vocab_size)
            with torch.no_grad(), subject.computing():
                logits: Tensor = subject.model.decoder(inps).float()
            check_finite(logits.amax(-1), "logits")
            return logits

        def _model_generate(self, context: Tensor, max_length: int, stop: Sequence[str], **settings: Any) -> Tensor:
            lengths = settings.pop("attention_mask").sum(1)
            # Settings of a task that change no greedy answer.
            allowed = {"do_sample": (None, False), "num_beams": (None, 1)}
            for name, value in settings.items():
                if name not in ("temperature", "top_p", "top_k") and value not in allowed.get(name, ()):
                    fix = "remove it from the task, or set do_sample: false"
                    raise ConfigError(f"generation_kwargs.{name}={value}: answers are greedy; {fix}")
            answers = context.new_full((len(context), max_length - context.shape[1]), self.eot_token_id)
            # The harness pads on the left: the last n tokens are the prompt. Distance methods need unpadded rows.
            for n in lengths.unique().tolist():
                rows = (lengths == n).nonzero().flatten()
                tokens = subject.generate(context[rows, -n:], answers.shape[1], partial(self.ended, stop))
                answers[rows, : tokens.shape[1]] = tokens
            # Whatever follows the end of an answer is replaced by that token, so that it is not read as text.
            over = torch.isin(answers, answers.new_tensor(stop_ids)).int().cummax(1).values.bool()
            return torch.cat([context, answers.masked_fill(over, self.eot_token_id)], 1)

        def ended(self, stops: Sequence[str], answers: Tensor, _: Tensor) -> Tensor:
            # A stop string ends in the newest token and has no more tokens of text than bytes, so that a whole answer
            # is decoded only where its last tokens hold one.
            reach = max([len(stop.encode()) for stop in stops], default=0) + SPECIAL

            def has_stop(ids: Ids) -> bool:
                text = tokenizer.decode(ids, skip_special_tokens=True)
                return any(stop in text for stop in stops)

            ended = [ids[-1] in stop_ids or (has_stop(ids[-reach:]) and has_stop(ids)) for ids in answers.tolist()]
            return torch.tensor(ended)

    # `hf` reads the device, the family and the name of the model that it serves; all calls of it go through this class.
    served: Any = SimpleNamespace(device=subject.device, config=SimpleNamespace(model_type="llama"), name_or_path="")
    return LabModel(
        served,
        tokenizer=tokenizer,
        backend="causal",
        max_length=window,
        prefix_token_id=prefix_id,
        batch_size=options.rows(window),
    )


def truncate_ids(ids: Ids, room: int, truncate: Truncate) -> Ids:
    """Return the tokens of a context that are read where `room` of them fit, at least one.

    Example:
        >>> truncate_ids([1, 2, 3, 4, 5], 3, "left"), truncate_ids([1, 2, 3, 4, 5], 3, "middle")
        ([3, 4, 5], [1, 5])
        >>> truncate_ids([1, 2], 1, "middle")
        [2]
    """
    if len(ids) <= room:
        return ids
    return ids[-room:] if truncate == "left" or room == 1 else ids[: room // 2] + ids[-(room // 2) :]


def open_tokenizer(subject: Subject, folder: Path, template: str | None) -> tuple[Any, int, Ids]:
    """Build a tokenizer of transformers; return it with the token that begins a document and those that end one.

    The files of a Hugging Face folder may name more tokens that end a document, as those of a chat's turns; a run
    folder has none.
    """
    from transformers import PreTrainedTokenizerFast

    # The run's own token comes first: it is the one that the harness takes for the end of a text.
    stop_ids: Ids = [] if subject.stop_id is None else [subject.stop_id]
    for name in ("config", "generation_config"):
        listed = read_json(folder / f"{name}.json").get("eos_token_id")
        stop_ids += [listed] if isinstance(listed, int) else listed or []
    stop_ids = list(dict.fromkeys(stop_ids))
    prefix = [*special_ends(subject.tokenizer)[0][-1:], *stop_ids]
    if not prefix:
        raise DataError("tokenizer.json: no token begins or ends a document; set eos_token_id in config.json")
    text = {"bos_token": subject.tokenizer.id_to_token(prefix[0])}
    if stop_ids:
        text["eos_token"] = subject.tokenizer.id_to_token(stop_ids[0])
    is_text = template is None or subject.model.experiment is not None  # special tokens, as when the run was trained
    if not is_text:
        text |= special_texts(folder)
    make: Any = PreTrainedTokenizerFast
    encoder = cases.Writer(subject.tokenizer).tokenizer
    tokenizer = make(tokenizer_object=encoder, split_special_tokens=is_text, chat_template=template, **text)
    return tokenizer, prefix[0], stop_ids
