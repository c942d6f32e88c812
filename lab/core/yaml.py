"""YAML 1.2 in and out: off, yes and 60:60 are words, 4e-4 and 1_000 are numbers, and dates are words, too."""

import difflib
import io
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode

from lab.core.errors import ConfigError, first_line

Settings = dict[str, Any]  # nested settings, by name
LONGEST_YAML = 2**18  # characters; parsing them takes seconds


class Constructor(SafeConstructor):
    """Builds values, text for dates, and a whole number for one with an exponent and without a fraction, as 1e4."""

    def _number(self, node: ScalarNode) -> float:
        value: float = self.construct_yaml_float(node)
        # From 2**53 on a float has no fraction, but may not be the number that was written.
        if "e" in node.value.lower() and value % 1 == 0 and abs(value) < 2**53:
            return int(value)
        return value


Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
Constructor.add_constructor("tag:yaml.org,2002:float", Constructor._number)


def parse_yaml(text: str, name: str) -> Any:
    """Parse YAML of at most LONGEST_YAML characters, without anchors; an error names its line.

    Example:
        >>> parse_yaml("{lr: 4e-4, name: 2001-01-01, tokens: 1_000}", "a.yaml")
        {'lr': 0.0004, 'name': '2001-01-01', 'tokens': 1000}
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = Constructor
    try:
        if len(text) > LONGEST_YAML:
            raise ValueError(f"longer than {LONGEST_YAML:,} characters")
        # By an anchor a few lines can describe more than fits into memory.
        for event in yaml.parse(text):
            if getattr(event, "anchor", None):
                raise MarkedYAMLError(problem="anchors and aliases are not read", problem_mark=event.start_mark)
        return yaml.load(text)
    except (YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise ConfigError(f"{name}:{line} not YAML ({problem or first_line(error)}); correct the line") from error


def format_yaml(values: Settings) -> str:
    """Write settings as YAML that `parse_yaml` and readers of YAML 1.1 read back to the same."""
    yaml, out = YAML(typ="safe", pure=True), io.StringIO()
    yaml.version = (1, 1)  # quotes words such as off, and writes 1.0e-05
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.representer.ignore_aliases = lambda data: True
    yaml.dump(values, out)
    return out.getvalue().removeprefix("%YAML 1.1\n---\n")


def read_yaml(path: Path) -> Settings:
    """Read a YAML file of sections, or a config of the lab by its name; reject any other file."""
    packed = Path(f"{files('lab') / 'configs' / str(path)}.yaml")
    # os.path returns False for a name with a NUL, which Path raises for.
    if os.path.isfile(packed) and not os.path.exists(path):
        path = packed
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_YAML + 1)
    except (OSError, ValueError) as error:  # not UTF-8, or a name with a NUL
        reason = getattr(error, "strerror", None) or error
        known = {Path(entry.name).stem: Path(entry.name).stem for entry in (files("lab") / "configs").iterdir()}
        known |= {entry.stem: str(entry) for entry in path.parent.glob("*.yaml")}
        fix = "use a YAML config, as one of configs/"
        # Names are compared without the ending, which makes all of them similar.
        for name in difflib.get_close_matches(path.stem, known, n=1):
            fix = f"did you mean {known[name]}?"
        raise ConfigError(f"{path}: cannot be read ({reason}); {fix}") from error
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold sections (model:, data:, train:, ...); see configs/")
    return values


def flatten(values: Settings, prefix: str = "") -> Settings:
    """Turn nested sections into dotted keys.

    Example:
        >>> flatten({"optim": {"lr": 1.0}, "skip": None})
        {'optim.lr': 1.0, 'skip': None}
    """
    out: Settings = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def part(values: Settings, key: str) -> Settings:
    """Return a section; an empty one if it is missing, null, or no section."""
    section = values.get(key)
    return section if isinstance(section, dict) else {}
