"""docs/training.md followed on two CPU cores: the commands of its steps, in a new environment, in miniature."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tests.forked import ROOT
from tests.launching import Processes, signalled

LIMIT_S = 1800
STEP = 8 * 2048  # tokens: two micro-batches of one window for each of four ranks
SMALLER = f"""
model.d_model=64 model.d_ff=176 model.n_heads=8 model.n_kv_heads=1 model.n_layers=2 model.vocab_size=512
train.tokens={24 * STEP} train.batch_tokens={STEP} train.micro_batch_tokens=2048
train.checkpoint_every_tokens={2 * STEP} probe.every_tokens={20 * STEP} track.every_steps=1 optim.warmup_steps=2
probe.tests=2 probe.distance_tests=2 train.devices=2 train.accelerator=cpu data.corpus.path=slim
""".split()  # all that differs from configs/tiny_2k.yaml; there, too, a probe comes with every tenth checkpoint
INSTEAD = {"0-63": "0-1", "/64": "/2", "seq 16": "seq 4"}  # of the page's words, beside the settings above
PARAMETERS = 2 * 512 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 8 + 3 * 64 * 176 + 2 * 64) + 64
SLURM = {  # an array; jobs of two nodes on this machine, one after the other, which srun gives a torchrun each; signals
    "sbatch": """
if [[ $1 == --array=0-1 ]]; then
    wrap=${@: -1}
    for task in 0 1; do SLURM_ARRAY_TASK_ID=$task bash -c "${wrap#--wrap=}" & tasks+=" $!"; done
    for task in $tasks; do wait "$task" || exit; done
else
    [[ $1 == --job-name=tiny_2k ]] && grep -q '^#SBATCH --dependency=singleton' "$2" || exit 2
    job=$(ls slurm-*.out 2> /dev/null | wc -l)
    touch slurm-$job.out
    export SLURM_JOB_ID=$job SLURM_NNODES=2 SLURM_CPUS_PER_TASK=1 SLURM_GPUS_ON_NODE=2 SLURM_JOB_NODELIST=here
    flock singleton bash -c 'bash "$@"; echo $? >> statuses' - "${@:2}" &> slurm-$job.out &
fi""",
    "scontrol": "echo 127.0.0.1",
    "srun": """
while [[ $1 == --* ]]; do shift; done
"$@" & first=$!
"$@" & second=$!
echo $first $second > agents
wait $first; status=$?
wait $second || exit
exit $status""",
    "scancel": "[[ $2 == --state=PENDING ]] || kill -USR1 $(cat agents)",
}


@pytest.fixture
def place(tmp_path):
    """A clone with SLURM's commands, and what the page downloads: a tokenizer, a haystack and SlimPajama's layout."""
    for name in ("lab", "eval", "configs", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name, **({"symlinks": True} if (ROOT / name).is_dir() else {}))
    for name, text in SLURM.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice(list("abcdefghij"), size=n)) for n in generator.integers(2, 8, size=300)]
    say = lambda n: " ".join(generator.choice(words, size=n)) + "."  # noqa: E731
    for split in ("train", "validation", "test"):
        for chunk in ("chunk1", "chunk2"):
            rows = [{"text": say(n), "meta": {"redpajama_set_name": "RedPajamaC4"}} for n in range(20, 420)]
            lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
            file = tmp_path / "slim" / split / chunk / f"example_{split}_0.jsonl.zst"
            file.parent.mkdir(parents=True)
            file.write_bytes(pyarrow.compress(lines, codec="zstd", asbytes=True))
    (tmp_path / "haystacks").mkdir()
    (tmp_path / "haystacks" / "PaulGrahamEssays.json").write_text(json.dumps({"text": " ".join(map(say, [30] * 500))}))
    (tmp_path / "tokenizers" / "llama3").mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))  # of Llama-3's form: its pieces, special tokens and beginning
    pieces = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pieces), "isolated"), in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    settings = {"vocab_size": 512, "special_tokens": special, "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator([say(5000)], trainers.BpeTrainer(**settings))
    begin = {"single": f"{special[0]} $A", "special_tokens": [(special[0], 0)]}
    tokenizer.post_processor = processors.TemplateProcessing(**begin)
    tokenizer.save(str(tmp_path / "tokenizers" / "llama3" / "tokenizer.json"))
    (tmp_path / "statuses").touch()
    yield tmp_path
    signalled(Processes(tmp_path, [], None).running(), signal.SIGKILL)


def ended(place, block):
    """Run the lines of a block in one shell of a user whose environment is that of the first step."""
    for words, small in INSTEAD.items():
        block = block.replace(words, small)
    block = block.replace("configs/tiny_2k.yaml", " --".join(["configs/tiny_2k.yaml", *SMALLER]))
    path = f"{place}/.venv/bin:{place}/bin:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(place), "OMP_WAIT_POLICY": "PASSIVE"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": LIMIT_S}
    words = ["bash", "-ec", block]
    return subprocess.run(words, cwd=place, env=environment, start_new_session=True, check=False, **options)


def ran(place, block):
    done = ended(place, block)
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


@pytest.mark.slow
def test_the_page_is_followed_from_clone_to_transformers(place):
    page = (ROOT / "docs" / "training.md").read_text()
    assert len(page.splitlines()) <= 160
    steps = re.findall(r"^```\n(.*?)^```$", page.split("## Explanations")[0], re.M | re.S)
    install, download, prepare, check, train, stop, use = steps
    assert [line.split()[0] for line in download.splitlines()] == ["hf", "curl"]  # what the fixture has made
    _, signal_it = stop.splitlines()
    done = ended(place, install)
    probe = f"{sys.executable} -m pip download --no-deps --no-cache-dir --dest index packaging"
    if done.returncode and ended(place, probe).returncode:
        pytest.skip("the package index does not answer")
    assert done.returncode == 0, done.stdout[-5000:]
    ran(place, prepare)
    assert len([*place.glob("shards/slimpajama-*/prepared.json")]) == 1  # which the last task writes
    ran(place, check)
    metrics = place / "runs" / "tiny_2k" / "metrics.jsonl"
    ran(place, train)
    statuses = (place / "statuses").read_text
    printed = lambda: "".join(path.read_text() for path in sorted(place.glob("slurm-*.out")))  # noqa: E731
    for stops, steps_done in enumerate((4, 12)):
        while not metrics.exists() or metrics.read_text().count("\n") < steps_done:
            assert statuses().count("\n") == stops, printed()[-5000:]
            time.sleep(0.1)
        ran(place, signal_it)
        while statuses().count("\n") == stops:
            time.sleep(0.1)
    while statuses().count("\n") < 4:
        time.sleep(0.1)
    assert statuses().split() == ["1", "1", "0", "0"], printed()[-5000:]  # torchrun's after a signal
    assert f"\n{PARAMETERS}\n" in ran(place, use)
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == list(range(1, 25))
    environment = json.loads((metrics.parent / "environment.json").read_text())
    assert len(environment["resumes"]) == 2
    probes = [json.loads(line) for line in (metrics.parent / "probes.jsonl").read_text().splitlines()]
    lengths = [probe["length"] for probe in probes if "length" in probe]
    assert lengths == 2 * list(range(512, 2561, 128))  # every tenth checkpoint, and at the end
    assert {probe["protocol"] for probe in probes if "length" in probe} == {"released"}
