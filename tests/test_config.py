import dataclasses
import json
import re
from pathlib import Path

import pytest

from lab.config import load_experiment
from lab.core.arguments import parse_overrides
from lab.core.errors import ConfigError
from lab.core.yaml import parse_yaml
from lab.longrecipe.stages import read_recipe
from tests.fits import CONFIG
from tests.forked import ROOT
from tests.refusals import check_faults

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
TEXT = CONFIG.read_text()

WRONG = {
    # unknown, with the nearest name
    "--model.lr=1": "model.lr=1: unknown setting; did you mean optim.lr?",
    "--data.tokenizer.method=xqz --model.vocab_size=9": "data.tokenizer.method=xqz: unknown; use one of: bpe, file",
    "--optim=3 --optim.lr=1e-3": "optim.lr=0.001: is set as a whole and in part",
    # contradicting
    "--model.vocab_size=5": "model.vocab_size=5: contradicts data.tokenizer.vocab_size=600",
    "--model.n_heads=5": "model.n_heads=5: must divide d_model=32; change",
    "--optim.min_lr=1": "optim.min_lr=1.0: must be <= lr=0.003",
    "--train.batch_tokens=1000": "train.batch_tokens=1000: must be a multiple of micro_batch_tokens=512; use 1024",
    "--train.micro_batch_tokens=64": "train.micro_batch_tokens=64: must be >= data.window=96",
    "--train.devices=3": "train.batch_tokens=1024: must be a multiple of micro_batch_tokens=512 * 3 ",
    "--train.tokens=1000": "train.tokens=1000: must be >= train.batch_tokens=1024",
    "--optim.warmup_steps=20": "optim.warmup_steps=20: must be < 20, the steps of the run ",
    "--probe.required=5": "probe.required=5: must be <= 4, the numbers of a test",
    "--train.strategy=single --train.devices=2": "train.strategy=single: runs one process, ",
    "--train.backend=flash": "train.backend=flash: runs on a CUDA device only",
    "--data.held_out_frac=0": "data.held_out_frac=0.0: the probe needs held-out text",
    "--data.tokenizer.method=file --data.tokenizer.path=a --model.vocab_size=9": "data.tokenizer.eos: must be set",
    "--run.seed=[1": "--run.seed: line 1: not YAML (",
    # a section in place of a value
    "--optim.lr.x=5": 'optim.lr={"x": 5}: a section cannot change 0.003',
    "--optim.lr={}": "optim.lr={}: a section cannot change 0.003",
    "--model.d_model.a.b=[1]": 'model.d_model={"a": {"b": [1]}}: a section cannot change 32',
    "--data.window.x=null": 'data.window={"x": null}: a section cannot change 96',
    "--optim.lr=1 --optim.lr.x=5": "optim.lr.x=5: is set as a whole and in part",
    "--optim.lr.x=5 --optim.lr=1": "optim.lr.x=5: is set as a whole and in part",
    "--plugins.0=a": 'plugins={"0": "a"}: must be a list',
}
JOINED = "--data.mode=concatenated"
POSE, CHUNKS = "--skip.method=pose --skip.target_len=200", "--mask.method=document --mask.chunks=2"
STRING = "--position.distance.method=string --position.distance.shift=32 --position.distance.window=8"
WINDOWED = "--model.layers.pattern=[window,part] --model.layers.fraction=0.5 --model.layers.window"
XFORMERS = "--train.backend=xformers --train.accelerator=gpu"
FROM_0 = "needs ids that count up from 0"
WRONG |= {  # position methods, layers, masks and blocks that grow
    "--mask.method=anchor": "mask.method=anchor: needs windows of several documents",
    "--mask.chunks=3": "mask.chunks=3: does not go with method: causal",
    f"{JOINED} --mask.method=anchor {POSE}": "mask.method=anchor: does not go with skip.method",
    f"{JOINED} --mask.method=anchor {STRING}": f"position.distance.method=string: {{}}{FROM_0}",
    STRING.replace("32", "96"): "position.distance.shift=96: changes nothing in 96 tokens",
    "--position.distance.method=dca --position.distance.chunk=20 --position.distance.train_len=200 "
    "--position.distance.window=4": "position.distance.train_len=200: must be <= data.window=96",
    f"{WINDOWED}=96": "model.layers.window=96: must be < data.window=96",
    f"{WINDOWED}=9 {POSE}": f"model.layers.window=9: {{}}{FROM_0}",
    f"{WINDOWED}=9 {XFORMERS}": "train.backend=xformers: returns no log-sum-exp, which model.layers.window needs",
    "--train.context_parallel=4 --train.devices=4": "train.context_parallel=4: must divide model.n_kv_heads=2",
    "--train.context_parallel=2 --train.devices=2 --data.window=95": "train.context_parallel=2: must divide ",
    "--train.context_parallel=2 --train.devices=3": "train.context_parallel=2: must divide devices * nodes=3",
}
WRONG |= {  # weights and evidence beside other sections
    f"{POSE.replace('200', '96')}": "skip.target_len=96: must be > data.window=96, or there is ",
    "--weights.by=evidence --weights.keep=[[0,95]]": "weights.keep=",
    "--weights.by=context --weights.keep=[[0,9]]": "weights.by=context",
    "--weights.by=evidence --weights.keep=[[0,9]] --weights.distance=ids": "weights.distance=ids: needs ids with gaps",
}


def load(path, *words):
    return load_experiment(path, parse_overrides(words))


def faults_of(*words, path=CONFIG):
    with pytest.raises(ConfigError) as caught:
        load(path, *words)
    return caught.value.errors


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """Work where runs/ and models/ have the runs and models that configs start from."""
    shape = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8}
    shape |= {"intermediate_size": 96, "vocab_size": 32000, "max_position_embeddings": 4096}
    for name in ("llama-2-7b", "llama-2-7b-chat", "llama-3-8b-instruct"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(shape))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
        (folder / "tokenizer.json").write_text("{}")
    for name in ("base_192", "cpu_demo"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").write_text(load(ROOT / "configs" / f"{name}.yaml").to_yaml())
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_short_holds_values_only_and_reads_back_to_the_same(path, tmp_path):
    assert len(path.read_text().splitlines()) < 40
    experiment = load(path)
    assert experiment.run.name == path.stem
    values = parse_yaml(path.read_text().replace("1_000_000_000_000", "1000000000000"), "test")
    assert set(values) <= {field.name for field in dataclasses.fields(experiment)}
    (tmp_path / "resolved.yaml").write_text(experiment.to_yaml())
    again = load(tmp_path / "resolved.yaml")
    assert again == experiment
    assert again.to_yaml() == experiment.to_yaml()


def test_defaults_then_file_then_command_line(tmp_path):
    (tmp_path / "named.yaml").write_text(TEXT)
    experiment = load(tmp_path / "named.yaml", "--optim.lr=4e-4", "--optim.min_lr", "0", "--run.seed=9")
    assert (experiment.optim.lr, experiment.optim.min_lr, experiment.run.seed) == (4e-4, 0.0, 9)
    assert experiment.optim.warmup_steps == 4  # the file's
    assert experiment.optim.beta2 == 0.95  # the default
    assert experiment.run.name == "named"
    assert experiment.model.vocab_size == 600  # the tokenizer's
    assert (experiment.tests.needles, experiment.tests.digits) == (4, 3)  # the corpus's
    assert load(tmp_path / "named.yaml", "--data.corpus.name=stdlib").tests.digits == 6  # the paper's


def test_another_protocol_has_its_own_answer_budget_and_sizes():
    experiment = load(CONFIG, "--probe.answer_budget=24")
    assert experiment.probe_settings({})["answer_budget"] == 24
    other = experiment.probe_settings({"protocol": "released"})
    assert (other["answer_budget"], "digits" in other) == (None, False)
    assert experiment.probe_settings({"protocol": "ours", "seed": 4})["digits"] == 3


def test_naming_the_tag_that_was_meant_anyway_keeps_the_keys(tmp_path):
    (tmp_path / "a.yaml").write_text(TEXT.replace("name: synthetic, documents: 400", "documents: 400"))
    assert load(tmp_path / "a.yaml").data.corpus.documents == 400
    assert load(tmp_path / "a.yaml", "--data.corpus.name=synthetic").data.corpus.documents == 400


def test_a_method_of_a_file_is_complete_and_an_override_changes_one_setting_of_it(tmp_path):
    (tmp_path / "run").mkdir()
    yarn = ("--position.frequency.method=yarn", "--position.frequency.train_len=48", "--position.frequency.factor=2")
    base = load(CONFIG, *yarn, "--position.frequency.beta_fast=16")
    (tmp_path / "run" / "config.yaml").write_text(base.to_yaml())
    start = f"start: {{path: {tmp_path / 'run'}}}\n"
    (tmp_path / "a.yaml").write_text(start)
    chosen = load(tmp_path / "a.yaml", "--position.frequency.factor=4").position.frequency
    assert (chosen.factor, chosen.beta_fast) == (4, 16)
    (tmp_path / "a.yaml").write_text(f"{start}position: {{frequency: {{method: yarn, train_len: 48, factor: 4}}}}\n")
    chosen = load(tmp_path / "a.yaml").position.frequency
    assert (chosen.factor, chosen.beta_fast) == (4, 32)  # the default, not the run's


@pytest.mark.parametrize(("words", "start"), WRONG.items(), ids=WRONG)
def test_a_wrong_setting_is_answered_in_one_line(words, start):
    check_faults(faults_of(*words.split()), [start])


def test_a_section_in_place_of_a_value_of_a_start_a_file_or_a_recipe_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(load(CONFIG).to_yaml())
    (tmp_path / "a.yaml").write_text(f"start: {{path: {tmp_path / 'run'}}}\noptim: 5\n")
    check_faults(faults_of("--model.theta.x=1", path=tmp_path / "a.yaml"), ['model.theta={"x": 1}: {}10000{}'])
    check_faults(faults_of("--optim.lr=1", path=tmp_path / "a.yaml"), ['optim={"lr": 1}: {}5{}'])
    with pytest.raises(ConfigError, match=r"optim.lr=\{\"x\": 5\}: a section cannot change 0.003"):
        load_experiment(CONFIG, {"optim": {"lr": {"x": 5}}})  # as wandb's agents pass nested parameters


@pytest.mark.parametrize(("right", "wrong"), [("model.d_model=32", "model.d_modle=32"), ("optim", "optimm")])
def test_one_typo_is_one_line(tmp_path, right, wrong):
    old, new = (name.rpartition(".")[2].replace("=", ": ") for name in (right, wrong))
    path = tmp_path / "made.yaml"
    path.write_text(re.sub(rf"\b{old}\b", new, TEXT, count=1))
    check_faults(faults_of(path=path), [f"{wrong}: unknown setting; did you mean {right.partition('=')[0]}?"])


def test_a_setting_of_another_member_is_not_answered_with_itself():
    (line,) = faults_of("--data.corpus.name=synthetic", "--data.corpus.path=x")
    assert "data.corpus.path" not in line.partition("; ")[2]


NO_SECTIONS = "must hold sections (model:, data:, train:, ...)"
NO_CONFIG = {
    "section_twice": (TEXT + "train: {tokens: 5}\n", f"line {len(TEXT.splitlines()) + 1}: not YAML ("),
    "key_twice": ("a:\n  b: 1\n  c: 2\n  b: 3\n", "line 4: not YAML ("),
    "open_list": ("a: [1\n", "line 2: not YAML ("),
    "python_object": ("a: !!python/object:os.system x\n", "line 1: not YAML ("),
    "deep_lists": (f"a: {'[' * 1500}{']' * 1500}\n", "not YAML ("),
    "beyond_unicode": ('run: {name: "\\UFFFFFFFF"}\n', "not YAML ("),
    "empty": ("", NO_SECTIONS),
    "list": ("- a\n", NO_SECTIONS),
    "not_utf8": (b"a: \xff", "cannot be read ("),
    "folder": (None, "cannot be read ("),
}


@pytest.mark.parametrize(("text", "start"), NO_CONFIG.values(), ids=NO_CONFIG)
def test_a_file_that_is_no_config_is_one_line_with_its_name(tmp_path, text, start):
    path = tmp_path / "made.yaml"
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (line,) = faults_of(path=path)
    assert line.startswith(f"{path}: {start}")
    assert "\n" not in line


def test_several_faults_are_all_reported_at_once():
    words = "--optim.lr=abc --data.window=1 --model.n_heads=5 --probe.max_length=5 --train.tokns=4"
    starts = ["data.window=1: ", "model.n_heads=5: ", 'optim.lr="abc": ', "probe.max_length=5: ", "train.tokns=4: "]
    check_faults(sorted(faults_of(*words.split())), starts)
    words = "--data.window=600 --train.tokens=100 --model.vocab_size=9"
    starts = ["model.vocab_size=9: ", "train.micro_batch_tokens=512: ", "train.tokens=100: "]
    check_faults(sorted(faults_of(*words.split())), starts)


def test_a_model_that_was_left_out_names_all_it_needs(tmp_path):
    (tmp_path / "made.yaml").write_text("data: {window: 64}\n")
    faults = faults_of(path=tmp_path / "made.yaml")
    names = ["d_model", "d_ff", "n_heads", "n_kv_heads", "n_layers", "tie_embeddings"]
    assert sorted(fault.split(":")[0] for fault in faults) == sorted(f"model.{name}" for name in names)


def test_every_reader_of_a_config_takes_the_name_of_one_of_the_labs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_experiment(Path("cpu_demo")) == load_experiment(ROOT / "configs" / "cpu_demo.yaml")
    start = "--start.path=absent --model.d_model=8 --model.n_heads=2 --model.n_kv_heads=2 --model.d_ff=8"
    words = f"{start} --model.n_layers=1 --model.vocab_size=300 --model.tie_embeddings=true"
    assert load_experiment(Path("extend_pi"), parse_overrides(words.split())).run.name == "extend_pi"
    recipe = Path("recipes/longrecipe_demo")
    assert read_recipe(recipe, {}) == read_recipe(ROOT / "configs" / f"{recipe}.yaml", {})
    Path("cpu_demo").write_text("{}")  # a file of that name goes before it
    with pytest.raises(ConfigError, match="model.d_model: must be set; "):
        load_experiment(Path("cpu_demo"))
