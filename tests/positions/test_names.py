import pytest

from lab.errors import ConfigError, LabError
from lab.positions import DISTANCE_METHODS, FREQUENCY_METHODS, distance, frequencies

# design.md, section 3: other programs rely on these
FREQUENCY_NAMES = ["rope", "pi", "ntk", "dynamic_ntk", "ntk_by_parts", "yarn", "llama3", "abf", "entropy_abf"]
DISTANCE_NAMES = ["plain", "string", "dca", "self_extend", "rerope", "leaky_rerope"]


def frequency_of(method, **parameters):
    return frequencies(method, head_dim=8, **parameters)


@pytest.mark.parametrize(
    ("build", "method", "message"),
    [
        pytest.param(
            frequency_of, "rpoe", "frequency.method=rpoe: unknown method; did you mean rope?", id="frequency_near"
        ),
        pytest.param(
            distance, "plian", "distance.method=plian: unknown method; did you mean plain?", id="distance_near"
        ),
    ],
)
def test_misspelt_method_is_answered_with_the_nearest(build, method, message):
    with pytest.raises(ConfigError) as caught:
        build(method)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("build", "field", "methods"),
    [
        pytest.param(frequency_of, "frequency.method", FREQUENCY_METHODS, id="frequency"),
        pytest.param(distance, "distance.method", DISTANCE_METHODS, id="distance"),
    ],
)
def test_foreign_method_is_answered_with_every_name(build, field, methods):
    with pytest.raises(ConfigError) as caught:
        build("xqzw")
    assert str(caught.value) == f"{field}=xqzw: unknown method; use one of: {', '.join(methods)}"


@pytest.mark.parametrize(
    ("build", "method", "rule"),
    [
        pytest.param(frequency_of, "rope", "Rope takes no parameters", id="rope"),
        pytest.param(distance, "plain", "Plain takes only log_n", id="plain"),
        pytest.param(distance, "rerope", "Rerope takes only log_n, window", id="also_where_one_is_missing"),
    ],
)
def test_every_parameter_that_would_be_ignored_is_named(build, method, rule):
    with pytest.raises(ConfigError) as caught:
        build(method, factor=2.0, shift=5)
    assert caught.value.faults == (
        f"factor=2.0: unknown parameter; {rule}",
        f"shift=5: unknown parameter; {rule}",
    )


def test_config_errors_are_caught_as_lab_errors_and_as_value_errors():
    with pytest.raises(LabError):
        distance("xqzw")
    with pytest.raises(ValueError, match="unknown method"):
        distance("xqzw")


@pytest.mark.parametrize("methods", [FREQUENCY_METHODS, DISTANCE_METHODS], ids=["frequency", "distance"])
def test_tables_name_each_method_as_its_config_does(methods):
    assert {name: module.Config.method for name, module in methods.items()} == {name: name for name in methods}


def test_methods_have_the_names_that_other_programs_rely_on():
    assert [*FREQUENCY_METHODS] == FREQUENCY_NAMES
    assert [*DISTANCE_METHODS] == DISTANCE_NAMES
