"""Notes of how an app is started, so that a cure names the command; nodes write them, and producers before any node."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pollux.errors import StoreError
from pollux.model import START, Job, NotePut, Run, StartCommand, starts_in, with_start
from pollux.plan import Why
from pollux.registry import Registry
from pollux.secrets import hide
from pollux.store.contract import Store
from pollux.store.decoding import as_far
from pollux.units import shell_word


async def starts_of(store: Store) -> tuple[StartCommand, ...]:
    """How the nodes of this store were started, as far as they told."""
    notes, _ = await as_far(store.notes(START))
    return starts_in(notes)


async def named_start(store: Store, why: Why, job: Job | None, run: Run | None = None) -> Why:
    """The answer, and if its cure is to start a node the command that starts this app."""
    if "start " not in why.cure or (job is None and run is None):
        return why
    version = job.scheduler_version if job is not None else run.scheduler_version if run is not None else 0
    source = job.source if job is not None else ""
    return replace(why, cure=with_start(why.cure, await starts_of(store), version=version, source=source))


async def note_start(store: Store, sources: Iterable[str], program: str, *, revision: int | None = None) -> None:
    """Remember what starts the app of these sources, in a store that processes share; `revision` as in `NotePut`.

    Only cures are poorer without the note: a store that refuses it, or a deleted current folder, is no error.
    """
    if not store.capabilities.shared or not program:
        return
    with suppress(StoreError, OSError):
        made = (hide(program), str(Path.cwd()), platform.node(), store.scheduler_version)
        starts = [StartCommand(each, *made) for each in sources]
        puts = [NotePut(f"{START}{each.source}", msgspec.to_builtins(each), revision) for each in starts]
        await store.put_notes(puts)


def app_words(registry: Registry, job: Job) -> str:
    """`pollux serve --app shop:app`, by the name that the module of the job's handler has for the app; else nothing."""
    handler = registry.get(job.handler)
    module = sys.modules.get(getattr(handler and handler.call, "__module__", None) or "")
    if module is None:
        return ""
    names = [name for name, value in list(vars(module).items()) if _registry_of(value) is registry]
    place = _importable(module.__name__)
    return f"pollux serve --app {shell_word(f'{place}:{names[0]}')}" if names and place else ""


def _registry_of(value: object) -> object:
    """What an app keeps as its registry.  A proxy (`flask.request`) that refuses every look is not asked."""
    try:
        return object.__getattribute__(value, "__dict__").get("_registry")
    except AttributeError:  # it has no attributes of its own
        return None


def _importable(module: str) -> str:
    """The name under which another process imports the module; nothing for a script of another or a deleted folder."""
    if module != "__main__":
        return module
    if (spec := getattr(sys.modules[module], "__spec__", None)) is not None:
        return str(spec.name)
    script = Path(sys.argv[0])
    with suppress(OSError):
        if script.suffix == ".py" and script.resolve().parent == Path.cwd():
            return script.stem
    return ""
