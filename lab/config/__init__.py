"""The typed experiment that a YAML file describes."""

from lab.config.experiment import Experiment, load_experiment
from lab.config.sections import RunConfig, StartConfig, TrackConfig, TrainConfig

__all__ = ["Experiment", "RunConfig", "StartConfig", "TrackConfig", "TrainConfig", "load_experiment"]
