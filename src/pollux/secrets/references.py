"""References to secrets in params, the sources that may use them, and their resolver.

    ${env:NAME}    a variable of the process that runs the job
    ${file:PATH}   a file on its machine, without its last newline; relative to the config file's folder
    $${env:NAME}   the text itself

Only what a file or code declares may hold references: a client that may only add jobs or runs must not be able to read
the workers' environment.  They are resolved where a job runs, right before its handler is called.  A file is read again
when it has changed, so a secret can be rotated without a restart.  No message holds a value: errors name references.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pollux.errors import InvalidInput
from pollux.model import Job
from pollux.model.job import params_and_json
from pollux.secrets.redaction import HIDDEN, HIDE_CHARS_MIN, REFERENCE, has_reference, secrets_in_url, whole
from pollux.units import format_size

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CURE = "write ${env:NAME} or ${file:PATH}; $${env:NAME} is the text itself"


class Reference(NamedTuple):
    kind: str  # env or file
    name: str

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.name}}}"


def references_of(text: str) -> list[Reference]:
    """Return the references in a text; raise for a malformed one."""
    found = []
    for match in REFERENCE.finditer(text) if "${" in text else ():
        escape, kind, name, end = match.groups()
        if escape:
            continue
        if not end:
            raise InvalidInput(f"the reference {match[0][:60]!r} is not closed", cure=_CURE)
        fits = _NAME.fullmatch(name) if kind == "env" else name.strip() and name.isprintable()
        if not fits:
            raise InvalidInput(f"the reference {match[0][:60]!r} names nothing", cure=_CURE)
        found.append(Reference(kind, name))
    return found


def texts_of(value: Any) -> Iterator[tuple[str, str]]:
    """Yield every text in plain data, with its path: `headers.Authorization`, `argv[2]`.  Of any depth."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, thing = waiting.pop()
        if isinstance(thing, str):
            yield path, thing
        elif isinstance(thing, dict):
            waiting += [(f"{path}.{key}" if path else str(key), thing[key]) for key in reversed(thing)]
        elif isinstance(thing, list):
            waiting += [(f"{path}[{index}]", thing[index]) for index in reversed(range(len(thing)))]


def may_hold_references(source: str) -> bool:
    """Whether the source is a file or code: the API and payloads may name no variable and no file of a worker."""
    return source.startswith(("file:", "code:"))


def check_references(params: Mapping[str, Any], source: str) -> None:
    """Refuse malformed references in a job's params, and any reference from a source that may hold none."""
    for path, text in texts_of(params):
        try:
            found = references_of(text)
        except InvalidInput as error:
            raise error.at(path) from None
        if found and not may_hold_references(source):
            raise InvalidInput(
                f"{found[0]} is a reference to a secret, which only a config file or code may hold",
                where=path,
                cure="declare the job there; $${env:NAME} is the text itself",
            )


def unescaped(text: str) -> str:
    return REFERENCE.sub(lambda match: match[0].removeprefix("$"), text) if "$${" in text else text


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of plain data with every text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    return value


FILE_BYTES_MAX = 64_000
FILES_MAX = 1_000  # remembered contents
JOBS_MAX = 10_000  # of which it is remembered whether they hold references
OPEN_FOLDERS = ("/run/secrets/",)  # of containers: everything there is world-readable by design


class Secrets:
    """Cache and resolver of the references in params."""

    def __init__(self, *, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        self.environ = os.environ if environ is None else environ
        self.folder = folder  # of relative paths; None: the current one
        self._files: dict[str, tuple[tuple[int, ...], str]] = {}
        self._jobs: dict[str, tuple[int, str, bool]] = {}

    def params_of(self, job: Job) -> dict[str, Any]:
        """Return the job's params as its handler gets them; of a job without references the params themselves."""
        if not job.params:
            return job.params
        known = self._jobs.get(job.id)
        if known is None or known[0] != job.revision or known[1] != job.source:
            known = job.revision, job.source, may_hold_references(job.source) and _needs_resolving(job.params)
            if len(self._jobs) >= JOBS_MAX:
                self._jobs.clear()
            self._jobs[job.id] = known
        return self.resolve(job.params) if known[2] else job.params

    def resolve(self, value: Any) -> Any:
        """Return plain data with every reference replaced by its value; raise `InvalidInput`, without the value."""
        return mapped(value, self._resolve_text)

    def resolve_address(self, text: str) -> str:
        """Resolve the address of a server, which people must see: of a whole URL only its secrets are hidden.

        Only of a whole one: in `${env:FRONT}@host` the end of `FRONT` is unknown.
        """
        found = references_of(text)
        is_whole = len(found) == 1 and str(found[0]) == text
        return self.value_of(found[0], secrets_in_url) if is_whole else self._resolve_text(text)

    def problems(self, value: Any) -> Iterator[InvalidInput]:
        """Yield an error for every reference that cannot be resolved here, each once, with its path."""
        seen: set[Reference] = set()
        for path, text in texts_of(value):
            for reference in references_of(text):
                if reference in seen:
                    continue
                seen.add(reference)
                try:
                    self.value_of(reference)
                except InvalidInput as error:
                    yield error.at(path) if path else error

    def warnings(self, value: Any) -> Iterator[InvalidInput]:
        """Yield warnings: a value too short to be hidden, a file that others may change."""
        for path, text in texts_of(value):
            for reference in references_of(text):
                secret = self.value_of(reference)
                if len(secret) < HIDE_CHARS_MIN:
                    what = f"{reference} has {len(secret)} characters, too few to be hidden where it appears"
                    yield InvalidInput(what, where=path, cure=f"use a secret of {HIDE_CHARS_MIN} characters or more")
                if reference.kind == "file" and self._path(reference.name).stat().st_mode & stat.S_IWGRP:
                    yield InvalidInput(f"{reference}: its group may change it", where=path, cure="chmod 640 the file")

    def value_of(self, reference: Reference, secrets_in: Callable[[str], list[str]] = whole) -> str:
        """Return the value and hide its secrets from now on: those that `secrets_in` finds, by default all of it."""
        value = self._variable(reference) if reference.kind == "env" else self._content(reference)
        for secret in secrets_in(value):
            HIDDEN.add(secret)
        return value

    def _resolve_text(self, text: str) -> str:
        if "${" not in text:
            return text
        references_of(text)  # raises on a malformed one
        return REFERENCE.sub(self._replaced, text)

    def _replaced(self, match: re.Match[str]) -> str:
        return match[0][1:] if match[1] else self.value_of(Reference(match[2], match[3]))

    def _variable(self, reference: Reference) -> str:
        value = self.environ.get(reference.name)
        if not value:
            what = "is empty" if value is not None else "is not set"
            cure = "set it where the job runs, for every worker"
            raise InvalidInput(f"{reference}: the variable {what}", cure=cure)
        return _text(value.encode("utf-8", "surrogateescape"), reference)

    def _path(self, name: str) -> Path:
        return (self.folder or Path.cwd()) / name

    def _content(self, reference: Reference) -> str:
        path = self._path(reference.name)
        try:
            seen = path.stat()  # cheap; the content is read only if it changed
            version = (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino, seen.st_dev)
            known = self._files.get(str(path))
            if known is not None and known[0] == version:
                return known[1]
            _check_kind(reference, path, seen)
            raw = _read(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            cure = f"it is looked for at {path}; make it readable for every worker"
            raise InvalidInput(f"{reference}: the file cannot be read: {reason}", cure=cure) from error
        value = _text(_without_newline(raw), reference)
        if len(self._files) >= FILES_MAX:
            self._files.clear()
        self._files[str(path)] = version, value
        return value


def check_payload(params: object) -> dict[str, Any]:
    """Check the data of a run, which are stored as they are: they may hold no reference, and no value of one.

    An escaped reference becomes its text.
    """
    return payload_and_json(params)[0]


def payload_and_json(params: object) -> tuple[dict[str, Any], bytes]:
    """Check the data of a run; return them, and the JSON as which they are stored."""
    plain, encoded = params_and_json(params)
    if b"$" not in encoded and not HIDDEN.knows_any:
        return plain, encoded
    is_escaped = False
    for path, text in texts_of(plain):
        is_escaped = is_escaped or "$${" in text
        if has_reference(text):
            what = "references to secrets are not resolved in the data of a run"
            cure = "put the reference into the job's own params; $${env:NAME} is the text itself"
            raise InvalidInput(what, where=path, cure=cure)
        if HIDDEN.has_value(text):
            what = "the value of a secret would be stored with the run"
            raise InvalidInput(what, where=path, cure="put its reference into the job's own params")
    return params_and_json(mapped(plain, unescaped)) if is_escaped else (plain, encoded)


def _needs_resolving(params: Mapping[str, Any]) -> bool:
    """Whether there is a reference; also an escaped one, which is to become its text."""
    return any("${" in text and REFERENCE.search(text) for _, text in texts_of(params))


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe in its place must not block
    with os.fdopen(descriptor, "rb") as file:
        return file.read(FILE_BYTES_MAX + 2)


def _without_newline(raw: bytes) -> bytes:
    return raw.removesuffix(b"\n").removesuffix(b"\r")


def _text(raw: bytes, reference: Reference) -> str:
    if len(raw) > FILE_BYTES_MAX:
        cure = f"at most {format_size(FILE_BYTES_MAX)}; is it the right one?"
        raise InvalidInput(f"{reference} is too big for a secret", cure=cure)
    if not raw:
        raise InvalidInput(f"{reference}: the file is empty", cure="write the secret into it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"{reference} is not text in UTF-8", cure="encode it, in base64 for example") from None


def _check_kind(reference: Reference, path: Path, seen: os.stat_result) -> None:
    if not stat.S_ISREG(seen.st_mode):
        raise InvalidInput(f"{reference} is no ordinary file", cure="name the file that holds the secret")
    if seen.st_mode & (stat.S_IROTH | stat.S_IWOTH) and not _is_shut_away(path):
        raise InvalidInput(
            f"{reference} can be read by every user of this machine (mode {stat.S_IMODE(seen.st_mode):04o})",
            cure=f"chmod 640 {path}, or keep it in a folder that is closed to others",
        )


def _is_shut_away(path: Path) -> bool:
    """Whether a folder above keeps others out, or this is the place where containers find their secrets."""
    real = path.resolve()
    if str(path).startswith(OPEN_FOLDERS) or str(real).startswith(OPEN_FOLDERS):
        return True
    return any(not folder.stat().st_mode & stat.S_IXOTH for folder in real.parents)
