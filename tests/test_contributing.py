"""The method that docs/plugins.md adds as an example, run as printed there."""

import doctest
import re
import sys
import textwrap
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from lab.positions import DISTANCE_METHODS, FREQUENCY_METHODS
from tests.forked import ROOT
from tests.positions import test_frequencies

PAGE = (ROOT / "docs" / "plugins.md").read_text()
NAME = "lab.positions.partial_pi"
METHOD, TESTS = map(textwrap.dedent, re.findall(r" +```python\n(.*?)\n +```", PAGE, re.S))


def test_the_tests_of_the_example_pass_and_fail_without_it(monkeypatch, tmp_path):
    (tmp_path / "partial_pi.py").write_text(METHOD)
    spec = spec_from_file_location(NAME, tmp_path / "partial_pi.py")
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, NAME, module)  # where the dataclass looks up its types
    spec.loader.exec_module(module)
    [class_name] = re.findall(r"`(\w+)` in `FREQUENCY_METHODS`", PAGE)
    method = getattr(module, class_name)
    monkeypatch.setitem(FREQUENCY_METHODS, method.method, method)  # as steps 1 and 2 of the page do
    written = {}
    exec(compile(TESTS, "test_partial_pi", "exec"), written)
    tests = [run for name, run in written.items() if name.startswith("test_")]
    assert len(tests) == 3
    for run in tests:
        run()
    parameters = {"factor": 8.0, "train_len": 2048}
    test_frequencies.test_inverse_frequencies_fall_and_a_factor_is_float64_like_the_positions("partial_pi", parameters)
    assert doctest.testmod(module) == (0, 1)
    monkeypatch.setattr(method, "inv_freq", FREQUENCY_METHODS["pi"].inv_freq)
    with pytest.raises(AssertionError):
        tests[0]()


@pytest.mark.parametrize("method", [*FREQUENCY_METHODS.values(), *DISTANCE_METHODS.values()])
def test_every_method_has_its_file_in_the_table_of_the_documentation(method):
    assert f"`{method.__module__.rpartition('.')[2]}.py`" in (ROOT / "docs" / "methods.md").read_text()
