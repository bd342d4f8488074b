"""Which handlers come with Pollux?  `http` polls a URL, `exec` runs a command.  One line in the app registers them."""

from pollux.handlers.built_in import BUILT_IN, BuiltIn, params_in_file, register

__all__ = ["BUILT_IN", "BuiltIn", "params_in_file", "register"]
