"""`pollux doctor`: is everything fit to run, and if not, what is the cure?"""

from pollux.cli.doctor.command import doctor

__all__ = ["doctor"]
