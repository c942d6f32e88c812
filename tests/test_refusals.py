"""Every setting refuses what its type and range exclude, in one line that names it, its value and a fix."""

import dataclasses
import math
from typing import get_origin, get_type_hints

import pytest
from pydantic import TypeAdapter

from lab import cli
from lab.config import Experiment, load_experiment
from lab.config.settings import nest
from lab.core.errors import ConfigError
from lab.core.schema import TAGS, list_members, validated
from tests.fits import CONFIG
from tests.test_command import form_of

OTHER = {"integer": (1.5, "word", True), "boolean": ("word", 3), "string": (3, True)}
OTHER["number"] = ("word", True, math.nan, math.inf)


def settings_of(section, prefix="", tags=()):
    """List the settings below a section: name, the tags that select its place, type, whether it must be set."""
    hints = get_type_hints(section, include_extras=True)
    for field in dataclasses.fields(section):
        name = f"{prefix}{field.name}"
        # a list, as the corpora of a mixture, has no settings of its own
        members = {} if get_origin(hints[field.name]) is tuple else list_members(hints[field.name])
        for tag, member in members.items():
            key = next((key for key in TAGS if hasattr(member, key)), None)
            yield from settings_of(member, f"{name}.", {**dict(tags), **({f"{name}.{key}": tag} if tag else {})})
        if not members and field.name not in TAGS:
            is_required = field.default is field.default_factory is dataclasses.MISSING
            yield name, dict(tags), hints[field.name], is_required


def wrong_values(hint):
    """List values that a type excludes: one below and one above its range, and some of other types."""
    form = TypeAdapter(hint).json_schema()
    form = next((part for part in form.get("anyOf", ()) if part.get("type") != "null"), form)
    kind = form.get("type")
    if "enum" in form or "const" in form:
        return ["wrod"]
    if kind == "array":
        return [3, "word"]
    ends = [form[key] for key in ("exclusiveMinimum", "exclusiveMaximum") if key in form]
    ends += [form["minimum"] - 1] if "minimum" in form else []
    ends += [form["maximum"] + 1 if kind == "integer" else 2 * form["maximum"]] if "maximum" in form else []
    return [*ends, *OTHER.get(kind, ())]


SETTINGS = [(*item, None) for item in settings_of(Experiment)]
FORMS = dict.fromkeys(form_of(name) for name in cli.commands() if form_of(name) not in (None, Experiment))
SETTINGS += [(*item, form) for form in FORMS for item in settings_of(form)]


def faults_of(form, values):
    with pytest.raises(ConfigError) as caught:
        load_experiment(CONFIG, values) if form is None else validated(form, nest(values))
    return caught.value.errors


@pytest.mark.parametrize(
    ("name", "tags", "hint", "form"),
    [(name, tags, hint, form) for name, tags, hint, _, form in SETTINGS],
    ids=[f"{form.__name__ if form else ''}-{'-'.join(tags.values())}-{name}" for name, tags, _, _, form in SETTINGS],
)
def test_a_wrong_value_is_a_line_with_the_setting_the_value_and_a_remedy(name, tags, hint, form):
    for value in wrong_values(hint):
        lines = [line for line in faults_of(form, {**tags, name: value}) if line.startswith(f"{name}=")]
        assert len(lines) == 1, (value, lines)
        shown, _, fix = lines[0].partition("; ")
        assert "must" in shown or "unknown" in shown, lines
        assert "finite" in shown or value not in (math.nan, math.inf), lines
        assert fix, lines


SECTIONS = {name.rpartition(".")[0]: tags for name, tags, _, _, form in SETTINGS if form is None and "." in name}


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_setting_is_a_line_with_what_there_is(section):
    (line,) = [x for x in faults_of(None, {**SECTIONS[section], f"{section}.zzz": 1}) if "zzz" in x]
    assert line.startswith(f"{section}.zzz=1: unknown setting; ")


REQUIRED = [(name, tags) for name, tags, _, must, form in SETTINGS if must and tags and form is None]
REQUIRED = [(name, tags) for name, tags in REQUIRED if name != "position.distance.shift"]  # the window fills it in


@pytest.mark.parametrize(("name", "tags"), REQUIRED, ids=[f"{'-'.join(tags.values())}-{n}" for n, tags in REQUIRED])
def test_a_setting_that_is_missing_is_named_with_its_meaning(name, tags):
    assert any(line.startswith(f"{name}: must be set; ") for line in faults_of(None, tags))
