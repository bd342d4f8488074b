"""Was the run that was asked for made, or was it there already?

The same id again is the same run: what was asked for beside it the second time is not laid over it, and that is said.
"""

from __future__ import annotations

from msgspec import Struct

from pollux.errors import Conflict
from pollux.model import Run, RunState

_PARTS = {"payload": "params", "key": "key", "priority": "priority"}  # of a run: what people call them


class Accepted(Struct, frozen=True):
    """The answer to whoever asks for a run."""

    run: Run  # as it is now
    is_new: bool = True  # False: a run of this id was there already
    kept: tuple[str, ...] = ()  # of that run: what it keeps although something else was asked for

    def in_words(self, *, revive: str) -> str:
        """What became of what was asked for; `revive` is how a dead run is let run again where it was asked."""
        if self.is_new:
            return "the run is accepted"
        words = f"run {self.run.id} exists already and is {self.run.state.value}"
        if self.kept:
            words += f"; its {' and '.join(self.kept)} were kept, and what was sent now was dropped"
        return f"{words}; to run it again: {revive}" if self.run.state is RunState.DEAD else words


def there_already(asked: Run, there: Run) -> Accepted:
    """A run of that id is there; what of it differs from what was asked for?  It must be one of the same job."""
    if there.job_id != asked.job_id:
        raise Conflict(f"run {asked.id} is one of job {there.job_id!r}, not of {asked.job_id!r}", cure="use another id")
    kept = [word for name, word in _PARTS.items() if (getattr(asked, name) or None) != (getattr(there, name) or None)]
    return Accepted(there, is_new=False, kept=tuple(kept))
