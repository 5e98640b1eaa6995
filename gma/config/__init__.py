"""Settings of a run: what there is to set, recipes, and where every value came from."""

from gma.config.loading import ConfigError, Resolved, load, load_arguments, recipes
from gma.config.settings import (
    AttentionSettings,
    Config,
    DataSettings,
    ModelSettings,
    SplitFiles,
    TrainingSettings,
)

__all__ = [
    "AttentionSettings",
    "Config",
    "ConfigError",
    "DataSettings",
    "ModelSettings",
    "Resolved",
    "SplitFiles",
    "TrainingSettings",
    "load",
    "load_arguments",
    "recipes",
]
