"""Chat templates: as transformers renders them, in a run's config, in its export, and around what is asked."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from eval.engine.cases import ANSWER, ASK
from eval.engine.subject import build_subject
from eval.lines import LinesOptions
from eval.lines import main as lines
from lab.core.errors import CheckpointError, ConfigError, DataError
from lab.core.yaml import format_yaml, parse_yaml
from lab.data.chat import USER_ASSISTANT, frame_question, render_turns, to_conversation
from lab.export import main as export
from lab.loading import open_model
from tests.eval.commands import lines_of, runner
from tests.opened import sealed
from tests.refusals import refused

FOLDER = Path(__file__).resolve().parents[2] / "eval/papers/templates"
TEMPLATES = {**{path.stem: path.read_text() for path in FOLDER.iterdir()}, "user_assistant": USER_ASSISTANT}
VICUNA = "A chat between a curious user and an artificial intelligence assistant. "
VICUNA += "The assistant gives helpful, detailed, and polite answers to the user's questions. USER: "
LLAMA3 = "<|start_header_id|>{}<|end_header_id|>\n\n"
AROUND = {  # what the released scripts write before and after a question
    "llama2": ("[INST]", "[/INST]"),
    "llama3": (LLAMA3.format("user"), f"<|eot_id|>{LLAMA3.format('assistant')}"),
    "qwen2": ("<|im_start|>\n", "\n"),
    "vicuna": (VICUNA, " ASSISTANT:"),
    "user_assistant": ("USER: ", "\nASSISTANT:"),
}
TURNS = [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello.\nYou?"), ("user", "Bye")]


def messages(*pairs):
    return [{"role": role, "content": text} for role, text in pairs]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_rendered_as_by_transformers(name, bpe):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=TEMPLATES[name])
    assert frame_question(TEMPLATES[name]) == AROUND[name]
    for turns in (TURNS[1:2], TURNS[1:], TURNS, TURNS[:3]):
        for answer in (False, True):
            theirs = tokenizer.apply_chat_template(messages(*turns), tokenize=False, add_generation_prompt=answer)
            assert render_turns(TEMPLATES[name], messages(*turns), answer=answer) == theirs


def test_a_conversation_is_scored_by_its_template():
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    row = {"conversations": [{"from": names[role], "value": text} for role, text in TURNS]}
    parts = (("Be kind. USER: Hi ASSISTANT:", False), (" Hello.\nYou?</s>", True), ("USER: Bye ", False))
    assert to_conversation(row, TEMPLATES["vicuna"]) == parts
    with pytest.raises(DataError, match="a turn changes the text before it"):
        to_conversation(row, "{{ messages | length }}{% if add_generation_prompt %}A{% endif %}")
    line = r"chat template: (cannot be rendered|omits).*; correct its Jinja"
    wrong = ("{% if %}", "{{ raise_exception('no') }}", "{{ 1 + '' }}", "no question")
    for template in (*wrong, "{{ 1 / 0 }}", "{{ 'a' * 10**15 }}"):
        with pytest.raises(ConfigError, match=line):
            frame_question(template)


@pytest.fixture
def chatty(run_folder, bpe, tmp_path):
    """The small run, as if it had been trained on conversations."""
    folder = tmp_path / "chatty"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns("eval"))
    config = parse_yaml((folder / "config.yaml").read_text(), "config.yaml")
    config["data"]["corpus"] = {"name": "conversations", "path": "none.jsonl"}
    (folder / "config.yaml").write_text(format_yaml(config))
    bpe.save(str(folder / "tokenizer.json"))
    return sealed(folder)


def test_a_runs_template_is_in_its_export_and_asks_the_same(chatty, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    assert runner(export)([chatty, "-o", tmp_path / "out"], capsys)[0] == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = tokenizer.apply_chat_template(messages(("user", "Hi")), tokenize=False, add_generation_prompt=True)
    assert text == "<bos>USER: Hi\nASSISTANT:"
    hashes = []
    for model in (chatty, tmp_path / "out"):
        words = [model, "--lengths=600", "--tests=3", "--apply_chat_template", "-o", tmp_path / model.name]
        status, _, err = runner(lines)(words, capsys)
        assert status == 0, err
        (row,) = lines_of(tmp_path / model.name, "lines")
        hashes.append([test["prompt_hash"] for test in lines_of(tmp_path / model.name, "lines", tests=True)])
        assert row["chat"] is True
    assert hashes[0] == hashes[1]


BOS = "{{ bos_token }}"
SAID = (  # what published templates do beside writing what is said
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ strftime_now('%Y') }} {{ messages | tojson }} {{ tools is none }} {{ bos_token | length }}\n"
    "{{ messages | tojson(false, 1) }} {{ image_token }}{{ own }}\n"
    "{%- for turn in messages %}\n  {% generation %}{% set said = turn.content | trim %}[{{ said }}]"
    "{% endgeneration %}\n"
    "{%- if loop.last %}{% break %}{% endif %}{% endfor %}{{ eos_token }}{% if add_generation_prompt %}<a>{% endif %}"
)
OWN = {"no_bos": SAID, "bos": BOS + SAID, "two_bos": BOS + BOS + SAID, "bos_inside": "x" + BOS + SAID}


@pytest.mark.parametrize("template", OWN)
@pytest.mark.parametrize("adds", [True, False], ids=["adds_bos", "adds_none"])
@pytest.mark.parametrize("form", ["jinja", "config", "named"])
def test_a_folders_chat_has_the_ids_of_transformers(template, adds, form, bpe, hugging_face_folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(hugging_face_folder, tmp_path / "model")
    tokenizer = json.loads(bpe.to_str())
    tokenizer["post_processor"] = tokenizer["post_processor"] if adds else None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    own = {"config": OWN[template], "named": [{"name": "default", "template": OWN[template]}]}.get(form)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<bos>", "__type": "AddedToken"},
        "eos_token": "<eos>",
        "image_token": "<eos>",
        "extra_special_tokens": {"own": "<eos>"},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config | ({"chat_template": own} if own else {})))
    if own is None:
        (folder / "chat_template.jinja").write_text(OWN[template])
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    subject = build_subject(open_model(folder), folder, torch.device("cpu"))
    writer = LinesOptions(apply_chat_template=True).writer(subject)
    for question in ("Who is 7?", ' "é" & <bos>\n '):
        ids = theirs.apply_chat_template(messages(("user", question)), add_generation_prompt=True)["input_ids"]
        assert writer.encode(f"{ASK}{question}{ANSWER}") == ids
    (tmp_path / "file.jinja").write_text(OWN[template])
    by_file = LinesOptions(chat_template=str(tmp_path / "file.jinja")).writer(subject)
    ids = by_file.encode(f"{ASK}Who{ANSWER}")
    assert ids.count(0) == OWN[template].count(BOS) + (adds and template in ("no_bos", "bos_inside"))
    with pytest.raises(ConfigError, match="no system"):
        render_turns(OWN[template], messages(("system", "Hi")))


MARK = {"300": {"content": "<|im|>", "special": True}}
DECLARED = {
    "added_tokens_decoder": MARK,
    "additional_special_tokens": ["<|im|>"],
    "extra_special_tokens": {"im": "<|im|>"},
    "pad_token": "<|im|>",
}


@pytest.mark.parametrize("key", DECLARED)
def test_a_marker_that_tokenizer_json_lacks_is_refused(key, bpe, hugging_face_folder, tmp_path):
    folder = shutil.copytree(hugging_face_folder, tmp_path / "model")
    bpe.save(str(folder / "tokenizer.json"))
    for template, refuses in (("<|im|>" + SAID, True), (SAID, False)):
        config = {"bos_token": "<bos>", "chat_template": template, key: DECLARED[key]}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        subject = build_subject(open_model(folder), folder, torch.device("cpu"))
        fault = pytest.raises(ConfigError, match=r"writes <\|im\|>, which is not a token of tokenizer.json; save")
        with fault if refuses else nullcontext():
            LinesOptions(apply_chat_template=True).writer(subject)


def test_a_folder_without_a_default_has_none_as_in_transformers(hugging_face_folder, tmp_path):
    folder = shutil.copytree(hugging_face_folder, tmp_path / "model")
    (folder / "tokenizer_config.json").write_text('{"chat_template": ["x"]}')
    assert open_model(folder).chat_template is None


def test_a_template_that_is_no_text_is_one_line(hugging_face_folder, tmp_path):
    folder = shutil.copytree(hugging_face_folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe{{ messages }}")
    with refused("{}chat_template.jinja: cannot be read", error=CheckpointError):
        _ = open_model(folder).chat_template
