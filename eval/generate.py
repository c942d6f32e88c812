r"""Continue a text, so that one can read what a model writes.

    probe-lab generate MODEL TEXT [--tokens=N] [--position.distance.method=NAME ...]

Every next token is the most likely one. The text begins as the tokenizer begins texts, and ends with the model's end of
a document or after N tokens. Settings are those of the run's config, such as another position method:

    probe-lab generate runs/cpu_demo "The magic number is"
    probe-lab generate hf:EleutherAI/pythia-160m "Once upon a time" --tokens=100
    probe-lab generate runs/cpu_demo "The magic number is" --position.distance.method=rerope \
        --position.distance.window=96

Prints the text with its continuation.
"""

from functools import partial
from pathlib import Path
from typing import Literal

import torch

from eval.engine.subject import build_subject, check_lengths
from lab.core.arguments import split_options
from lab.core.command import Arguments, CommandSpec, run, start
from lab.core.errors import ConfigError
from lab.core.schema import Length, Section
from lab.data.tokenizer import check_ids, special_ends
from lab.loading import open_model
from lab.model.devices import device_for


class GenerateOptions(Section):
    """Options of the command, in addition to the settings of a run."""

    tokens: Length = 64
    """Tokens to write at most."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""


def continue_text(args: Arguments) -> str:
    """Return the text with its continuation."""
    options, overrides = split_options(GenerateOptions, args.settings)
    if len(args.positional) < 2:
        raise ConfigError('TEXT: must be the second argument, in quotes; for instance "The magic number is"')
    path = Path(args.positional[0])
    device = device_for(options.device)
    subject = build_subject(open_model(path, overrides, device=device), path, device)
    text = args.positional[1].encode(errors="replace").decode()  # bytes of a command line may be no text
    ids = [*special_ends(subject.tokenizer)[0], *subject.tokenizer.encode(text, add_special_tokens=False).ids]
    if not ids:
        raise ConfigError("TEXT: must not be empty, as the tokenizer begins texts with no token; write some words")
    check_ids(ids, subject.vocab_size)
    check_lengths({"tokens": len(ids) + options.tokens}, subject)
    answer = subject.generate(torch.tensor([ids]), options.tokens)
    return subject.tokenizer.decode([*ids, *answer[0].tolist()])


SPEC = CommandSpec(
    description=__doc__,
    positional=2,
    missing="{word}: MODEL must be the first argument; give a run folder, a checkpoint in it, or a Hugging Face folder",
    options=GenerateOptions,
)
main = partial(run, SPEC, continue_text)

if __name__ == "__main__":
    start(main)
