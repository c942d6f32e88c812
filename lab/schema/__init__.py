"""Typed settings: the base of all config classes, the YAML that they are read from, and plugins that add to them."""

from lab.schema.plugins import load_plugin as load_plugin
from lab.schema.plugins import load_plugins as load_plugins
from lab.schema.sections import LONGEST as LONGEST
from lab.schema.sections import MOST as MOST
from lab.schema.sections import TAGS as TAGS
from lab.schema.sections import Length as Length
from lab.schema.sections import NonNegative as NonNegative
from lab.schema.sections import OneOf as OneOf
from lab.schema.sections import PathText as PathText
from lab.schema.sections import Positive as Positive
from lab.schema.sections import PositiveFloat as PositiveFloat
from lab.schema.sections import Section as Section
from lab.schema.sections import Seed as Seed
from lab.schema.sections import Share as Share
from lab.schema.sections import Tests as Tests
from lab.schema.sections import adapter as adapter
from lab.schema.sections import docs_of as docs_of
from lab.schema.sections import given as given
from lab.schema.sections import plain as plain
from lab.schema.sections import settings_in as settings_in
from lab.schema.sections import validated as validated
from lab.schema.yaml import flatten as flatten
from lab.schema.yaml import format_yaml as format_yaml
from lab.schema.yaml import parse_yaml as parse_yaml
from lab.schema.yaml import part as part
from lab.schema.yaml import read_yaml as read_yaml
