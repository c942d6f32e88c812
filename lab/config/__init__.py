"""The typed experiment that a YAML file describes."""

from lab.config.experiment import DEFAULT_DIGITS, DEFAULT_NEEDLES, Experiment
from lab.config.reading import load_experiment
from lab.config.sections import RunConfig, StartConfig, TrackConfig, TrainConfig

__all__ = [
    "DEFAULT_DIGITS",
    "DEFAULT_NEEDLES",
    "Experiment",
    "RunConfig",
    "StartConfig",
    "TrackConfig",
    "TrainConfig",
    "load_experiment",
]
