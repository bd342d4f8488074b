"""Codec of the RPC: arguments and results of verbs as JSON, and errors as the same exception on both sides.

Types come from the annotations of the verb, so that one line in `LOOKS` or in the server's table of roles makes a verb
available over HTTP.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from functools import cache
from types import GenericAlias, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from pollux import errors
from pollux.app.operations.contract import GROUPS, verbs_of
from pollux.errors import Conflict, Illegible, InvalidConfig, InvalidInput, NotFound, PolluxError, StoreMoved, read_at
from pollux.model import Job
from pollux.secrets import HIDDEN, check_payload, hide, looks_secret
from pollux.store.urls import sqlite_file

PATH = "/api/v2/verbs"
VERSION_HEADER = "Pollux-Version"
LOOKS = frozenset(  # verbs that only read: they may be repeated
    {
        *("get_job", "find_job", "jobs_by_id", "list_jobs", "get_run", "find_run", "list_runs", "overdue", "counts"),
        *("stops", "nodes", "why", "list_audit", "verify_audit", "list_versions", "compare", "overview", "dump"),
        *("list_settings", "drained_workers", "file_versions", "file_in_force", "options_in_force", "list_tokens"),
        "health_document",
    }
)
_INSIDE = frozenset({"self", "connection", "unknown"})  # arguments that cannot leave the process


class Hello(Struct, frozen=True):
    """Identity of a node: its Pollux, its store, and the caller as it knows them."""

    version: str
    store: str  # its URL, without a password
    file: str  # of a store that is a file: which one, as `device:inode`
    sealed: str  # why it is not in use, if it was moved elsewhere
    name: str  # the name of the caller's token
    role: str
    now_ms: int = 0  # by the clock of the store; 0: it did not say it in time


def file_mark(url: str) -> str:
    """Which file it is, whatever its name is here: `device:inode`; nothing for what is no file, or not there."""
    file = sqlite_file(url)
    try:
        found = None if file is None else os.stat(file)  # noqa: PTH116  a path as it was written
    except OSError:
        return ""
    return "" if found is None else f"{found.st_dev}:{found.st_ino}"


class RpcVerb(NamedTuple):
    group: str  # of `OperationsProtocol`
    name: str
    names: tuple[str, ...]  # of its arguments, in order
    refs: frozenset[str]  # those that mean a job, by its id, a Job or a function
    arguments: type[Struct]
    answer: Any  # of one that answers page by page: a page
    is_paged: bool

    def packed(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        """The arguments of a call, as a body."""
        if len(given) > len(self.names):
            raise TypeError(f"{self.name} takes {len(self.names)} arguments")
        args = dict(zip(self.names, given, strict=False)) | dict(named)
        if unknown := args.keys() - set(self.names):
            raise TypeError(f"{self.name} takes no argument {', '.join(sorted(unknown))} from afar")
        for name, value in args.items():
            if isinstance(value, Mapping):
                read_at(name, check_payload, value)  # the error names the argument as it was written
            elif name in self.refs and value is not None:
                args[name] = value.id if isinstance(value, Job) else getattr(value, "pollux_job_id", value)
        return msgspec.json.encode(args)

    def unpacked(self, body: bytes) -> dict[str, Any]:
        """The arguments that a body has, of their types; the others get the defaults of the server."""
        try:
            args = msgspec.json.decode(body or b"{}", type=self.arguments)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidInput(
                f"{self.name} cannot be asked so: {error}", cure="ask with a `pollux` command"
            ) from error
        values = {name: getattr(args, name) for name in self.names}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}

    def read(self, body: bytes) -> Any:
        return msgspec.json.decode(body, type=self.answer)


@cache
def verb_of(name: str) -> RpcVerb:
    """The verb of this name; `NotFound` if there is none that can be asked."""
    found = [(group, verbs[name]) for group, kind in GROUPS.items() if name in (verbs := verbs_of(kind))]
    if not found:
        raise NotFound("verb", name)
    [(group, method)] = found
    hints = get_type_hints(method)
    is_paged = get_origin(hints["return"]) is AsyncIterator
    names = tuple(each for each in inspect.signature(method).parameters if each not in _INSIDE)
    fields = [(each, _carried(hints[each]) | msgspec.UnsetType, msgspec.UNSET) for each in names]
    refs = frozenset(each for each in names if hints[each] is object)
    answer = get_args(hints["return"])[0] if is_paged else hints["return"]
    arguments = msgspec.defstruct(name, fields, forbid_unknown_fields=True)
    return RpcVerb(group, name, names, refs, arguments, answer, is_paged)


def _carried(hint: Any) -> Any:
    """The type in which an argument travels: moments as text, a job as its id."""
    if hint is object:
        return str | None
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kept = [_carried(each) for each in inner if each is not datetime or str not in inner]
        return Union[tuple(kept)]  # noqa: UP007  of as many as there are
    if origin is Iterable:
        return GenericAlias(list, (_carried(inner[0]),))
    return hint


# answers


def packed_answer(answer: Any, *, is_masked: bool) -> bytes:
    """Values of the user's data under keys named like a password are masked for viewers."""
    return msgspec.json.encode(_masked(answer) if is_masked else answer)


def _masked(value: Any) -> Any:
    if isinstance(value, Struct):
        parts = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: _masked(part) for name, part in parts.items() if isinstance(part, _NESTS)}
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, Mapping):
        return {key: _masked(HIDDEN.hide_in(item, is_secret=looks_secret(str(key)))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item) for item in value]
    return value


_NESTS = (Struct, Mapping, list, tuple)

# refusals


class ErrorRecord(Struct, frozen=True, omit_defaults=True):
    """An error of ours as it travels: its class by name, and what it was made of."""

    kind: str
    words: str
    where: str = ""
    cure: str = ""
    name: str = ""  # of what was not found
    problems: tuple[ErrorRecord, ...] = ()


def record_of(error: PolluxError) -> ErrorRecord:
    kind = next(each.__name__ for each in type(error).__mro__ if getattr(errors, each.__name__, None) is each)
    match error:
        case InvalidConfig():
            return ErrorRecord(kind, "", problems=tuple(record_of(problem) for problem in error.problems))
        case InvalidInput():
            return ErrorRecord(kind, hide(error.what), where=error.where, cure=error.cure)
        case NotFound():
            return ErrorRecord(kind, error.kind, name=hide(error.name), cure=error.cure)
        case Conflict() | StoreMoved():
            return ErrorRecord(kind, hide(error.what), cure=hide(error.cure))
        case Illegible():  # what could be read stays behind
            return ErrorRecord("StoreError", hide(str(error)))
        case _:
            return ErrorRecord(kind, hide(str(error)))


def raised(refusal: ErrorRecord) -> PolluxError:
    """The same error again; of a class that this Pollux does not know, the root of them."""
    kind = getattr(errors, refusal.kind, PolluxError)
    match refusal.kind:
        case "InvalidConfig":
            problems = [raised(problem) for problem in refusal.problems]
            return InvalidConfig([each for each in problems if isinstance(each, InvalidInput)])
        case "InvalidInput":
            return InvalidInput(refusal.words, where=refusal.where, cure=refusal.cure)
        case "NotFound":
            return NotFound(refusal.words, refusal.name, cure=refusal.cure)
        case "Conflict":
            return Conflict(refusal.words, cure=refusal.cure)
        case "StoreMoved":
            return StoreMoved(refusal.words, cure=refusal.cure)
        case _ if isinstance(kind, type) and issubclass(kind, PolluxError):
            return kind(refusal.words)
    return PolluxError(refusal.words)
