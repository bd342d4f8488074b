"""Configuration: defaults < file < environment < arguments, validated as a whole: all problems come at once."""

from pollux.config.load import load_config
from pollux.config.settings import Config

__all__ = ["Config", "load_config"]
