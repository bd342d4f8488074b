"""`pollux doctor`: checks of the machine, the config and the store, with cures."""

from pollux.cli.doctor.command import doctor

__all__ = ["doctor"]
