"""What every refusal has, in one line for each fault: the field with its value, the rule that it breaks, a remedy."""

import re
from contextlib import contextmanager

import pytest

from lab.errors import LabError


def check_faults(lines, rules):
    """Compare each line with the rule that it begins with, `{}` in which is any text; some remedy must follow."""
    for line, rule in zip(lines, rules, strict=True):
        assert re.match(".*".join(map(re.escape, rule.split("{}"))), line), line
        assert line.partition("; ")[2], line


@contextmanager
def refused(*rules, error=LabError):
    """Expect an error of these lines."""
    with pytest.raises(error) as caught:
        yield
    check_faults(str(caught.value).splitlines(), rules)
