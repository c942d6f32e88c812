"""What every refusal has, in one line for each fault: the field with its value, the rule that it breaks, a fix.

A better sentence about a setting costs no test: what its rule names (numbers, bounds, settings) is compared, not words.
"""

import re
from contextlib import contextmanager

import pytest

from lab.core.errors import LabError

SETTING = re.compile(r"-{0,2}[\w.]+(=.*)?", re.DOTALL)
NAMED = re.compile(r"[<>]=?|\S*(?:[\d=/_\"']|\w\.\w)\S*")


def is_of(line, rule):
    """Tell whether a line begins as its rule, `{}` in which is any text; of a setting's rule, names what it names."""
    field, colon, said = rule.partition(": ")
    whole = not SETTING.fullmatch(field)
    begin, named = (rule, []) if whole else (field + colon, NAMED.findall(said))
    parts = [part for word in named for part in word.strip(",;:()?").split("{}")]
    return re.match(".*".join(map(re.escape, begin.split("{}"))), line) and all(part in line for part in parts)


def check_faults(lines, rules):
    """Compare each line with its rule; some fix must follow."""
    for line, rule in zip(lines, rules, strict=True):
        assert is_of(line, rule), (line, rule)
        assert line.partition("; ")[2], line


@contextmanager
def refused(*rules, error=LabError):
    """Expect an error of these lines."""
    with pytest.raises(error) as caught:
        yield caught
    check_faults(str(caught.value).splitlines(), rules)
