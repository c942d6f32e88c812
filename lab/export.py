r"""Export a run as a Hugging Face folder, which transformers and lm-evaluation-harness take as it is.

    probe-lab export RUN -o FOLDER [--weights_only] [--setting=value ...]

RUN is a run folder (its newest checkpoint is taken) or a checkpoint in it. Settings are those of the run's config, such
as another position method:

    probe-lab export runs/cpu_demo -o exported
    probe-lab export runs/cpu_demo --position.frequency.method=yarn --position.frequency.factor=4 \
        --position.frequency.train_len=192 -o exported_yarn
    probe-lab export runs/cpu_demo_string --weights_only -o exported_weights
    lm_eval --model hf --model_args pretrained=exported --tasks lambada_openai

FOLDER holds model.safetensors in float32, the tokenizer with its special tokens and the chat template of conversations,
and generation_config.json, by which generation stops at the end of a document. experiment.yaml, the run's config, with
copies of its plugins, and haystack.txt let evaluations ask what they ask the run. config.json names Llama, with biases
Qwen2, or with norms of queries and keys Qwen3. max_position_embeddings is the training window, or the length that the
position method or skipped ids extend it to. README.md is the model card.

rope, abf, ntk, pi, dynamic_ntk, ntk_by_parts, yarn and llama3 have a name in config.json. For any other
method --weights_only writes plain RoPE in its place, for lab.model.huggingface.apply(model, distance=...) to replace.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from lab.core import plugins
from lab.core.command import Arguments, CommandSpec, run, start
from lab.core.errors import CheckpointError, ConfigError
from lab.data.tokenizer import require_tokenizer
from lab.loading import OpenedModel, open_model, token_ids
from lab.model.huggingface.pretrained import save_pretrained
from lab.model.huggingface.rope import WRITTEN_AS, written_length
from lab.positions import distance, frequencies
from lab.probe.needles import KEPT
from lab.runs.folder import RunFolder
from lab.runs.source import EXPERIMENT, find_place

SPEC = CommandSpec(
    description=__doc__,
    flags={"--weights_only": "Write plain RoPE in place of a method without a name in config.json."},
    values={"-o": "Folder of the exported model; required."},
    missing="{word}: RUN must be the first argument; give a run folder or a checkpoint in it",
)


def export(args: Arguments) -> str:
    """Write the folder, and return a summary."""
    output = args.options.o
    if output is None:
        raise ConfigError("-o: must be given, the folder to write; for instance -o exported")
    if find_place(Path(args.positional[0])).is_hugging_face:
        raise CheckpointError(f"{args.positional[0]}: is a Hugging Face folder already; copy it, or give a run folder")
    model = open_model(args.positional[0], args.settings)
    trained, decoder = model.method, model.model
    if args.options.weights_only:
        decoder.distance = distance("plain")
        if decoder.frequencies.method not in WRITTEN_AS:
            decoder.frequencies = frequencies("rope", head_dim=decoder.cfg.head_dim, theta=decoder.frequencies.theta)
    export_model(model, output)
    line = (
        f"{output}: {model.name} at {model.consumed_tokens or 0:,} tokens, "
        f"{model.decoder.cfg.n_parameters():,} parameters, {model.method}"
    )
    if model.method != trained:
        line += f"; without {trained}, which config.json has no name for"
    return line


def export_model(model: OpenedModel, output: str) -> None:
    """Write a run's model and tokenizer as a Hugging Face folder."""
    experiment, run = model.experiment, model.folder
    assert experiment is not None, "a run"
    assert run is not None, "a run"
    tokenizer = require_tokenizer(model.tokenizer)
    ids = token_ids(model)
    longest = longest_text(model)
    tokenizer_config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, number in ids.items():
        if number is not None:
            tokenizer_config[name.removesuffix("_id")] = tokenizer.id_to_token(number)
    # The library would remove spaces before punctuation, which the lab's tokens have, from decoded text.
    tokenizer_config["clean_up_tokenization_spaces"] = False
    # Without this list the library's default adds token_type_ids, which Llama's forward does not take.
    tokenizer_config["model_input_names"] = ["input_ids", "attention_mask"]
    if longest is not None:
        tokenizer_config["model_max_length"] = longest
    if model.chat_template is not None:  # the library encodes rendered chats without special tokens
        tokenizer_config["chat_template"] = f"{{{{ bos_token }}}}{model.chat_template}"
    files: dict[str, str | bytes] = {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(tokenizer_config, indent=2),
        "generation_config.json": json.dumps(ids, indent=2),
    }
    files[EXPERIMENT] = experiment.to_yaml()
    for name in experiment.plugins:
        kept = f"{plugins.KEPT}/{Path(name).name}"
        files[kept] = (run / kept).read_bytes()
    if (run / KEPT).is_file():
        files[KEPT] = (run / KEPT).read_text(encoding="utf-8")
    files["README.md"] = write_card(model, experiment.data.corpus, run)
    save_pretrained(model.model, output, train_len=longest, token_ids=ids, files=files)


def longest_text(model: OpenedModel) -> int | None:
    """Return the tokens of the longest text that the model is meant for; None if its position method states it."""
    method = model.decoder.frequencies
    if method.method == "dynamic_ntk" or model.experiment is None:
        return None
    target = getattr(model.experiment.skip, "target_len", 0)
    return max(model.train_len, written_length(method, None) or 0, target)


def write_card(model: OpenedModel, corpus: Any, run: Path) -> str:
    """Write the card of a run's checkpoint."""
    return f"""---
library_name: transformers
tags: [probe-lab, long-context]
---
# {model.name}

{model.decoder.cfg.n_parameters():,} parameters, trained on {model.consumed_tokens or 0:,} tokens of \
{getattr(corpus, "repository", None) or corpus.name} in windows
of {model.train_len:,}, at commit {RunFolder(run).environment().get("commit", "unknown")}
of the probe lab, whose code has the licence Apache-2.0. The data has its own.
"""


main = partial(run, SPEC, export)


if __name__ == "__main__":
    start(main)
