"""May a job be taken away, or would it come back?  It would, as long as a node of the source lives that declares it."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.errors import Conflict
from pollux.model import API_SOURCE, Job
from pollux.plan import forsaken, is_backed
from pollux.store.contract import PAGE_MAX, Store
from pollux.store.decoding import as_far

__all__ = ["cure_of", "forsaken", "place_of", "refuse_backed"]
NAMED_MAX = 5


async def refuse_backed(store: Store, ids: Sequence[str]) -> list[Job]:
    """Raise `Conflict` for jobs that a living node would put back; answers those that are there and can be read."""
    jobs: list[Job] = []
    for start in range(0, len(ids), PAGE_MAX):
        found, _ = await as_far(store.get_jobs(ids[start : start + PAGE_MAX]))
        jobs += [job for job in found if job is not None]
    nodes = await store.nodes() if any(job.source != API_SOURCE for job in jobs) else []
    if backed := [job for job in jobs if is_backed(job, nodes)]:
        cure = cure_of(backed[0], f"pollux pause {backed[0].id}")
        raise Conflict(_words(backed), cure=f"{cure}; once the nodes that declare it are stopped it can be deleted")
    return jobs


def cure_of(job: Job, pause: str, *, do: str = "take it out of") -> str:
    """What to `do` in the place of its declaration instead; `pause` is how that is said by whoever asks."""
    again = "it is read again by itself" if job.source.startswith("file:") else "and restart it"
    return f"{do} {place_of(job.source)} ({again}), or pause it: {pause}"


def place_of(source: str) -> str:
    """`the file pollux.yaml`, `the file with name: shop`, `the code of shop`."""
    kind, _, name = source.partition(":")
    if kind != "file":
        return f"the code of {name}"
    return f"the file {name}" if "." in name else f"the file with name: {name}"


def _words(backed: Sequence[Job]) -> str:
    sources = ", ".join(sorted({job.source for job in backed}))
    if len(backed) == 1:
        return f"job {backed[0].id!r} is declared by {sources}, of which a node lives: deleted, it would come back"
    names = ", ".join(job.id for job in backed[:NAMED_MAX]) + (", ..." if len(backed) > NAMED_MAX else "")
    return f"{len(backed)} of these jobs ({names}) are declared by {sources}: deleted, they would come back"
