"""Handler `exec`: a command, without a shell, with an environment of its own, within limits and its timeout.

    {id: disk, exec: ["df", "-h", "/"], interval: 5m, timeout: 10s}
    {id: feed, exec: {argv: ["./fetch.sh"], cwd: feeds, env: {TOKEN: "${file:token}"}, take: json}, interval: 1m}

It gets PATH, LANG and TZ of the node, HOME and TMPDIR of its own, the variables of `env`, and nothing else.  Its
deadline, a cancel, a lost lease, a drain and the death of the node end it with everything it started
(`subprocesses.py`).  The exit code decides; of the output a tail is kept, and its hash shows whether anything changed.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from pollux.errors import InvalidInput, Permanent, Transient, did_you_mean
from pollux.model.job import RESULT_BYTES_MAX
from pollux.registry import Context, Observed, Registry
from pollux.secrets import HIDDEN
from pollux.subprocesses import Process, ProcessEnd, ProcessLimits
from pollux.units import duration_ms, format_size, size_bytes

GRACE_MS = 1_000  # between SIGTERM and SIGKILL
TAIL_BYTES = 4_000  # kept of stdout and of stderr
ERROR_OUTPUT_CHARS = 2_000  # of them in the message of a failure
ARGUMENTS_MAX, ARGUMENTS_BYTES_MAX = 1_000, 100_000
OUTPUT_BYTES = 10_000_000  # default limit of what it may write before it is ended
FILES = 1_024  # default limit of open files
MARGIN_BYTES = 16_000  # kept before a tail: the cut must not leave half a secret
LEFTOVER_SECONDS = 1.0  # for reading the rest of its output
EXAMPLE = '["df", "-h"] or {argv: ["df", "-h"], cwd: /srv}'
TAKES = ("tail", "stdout", "json", "none")
KEYS = ("argv", "cwd", "env", "stdin", "expect", "permanent", "take", "limits")
_LIMITS = ("memory", "cpu", "files", "output")
_PASSING = frozenset({  # reasons not to start a command that may have passed by the next attempt
    errno.EAGAIN, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EROFS,
    errno.ETXTBSY,
})  # fmt: skip
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


class CommandFailed(Transient):
    """The command did not do what was expected; trying again may help."""


class CommandRefused(Permanent):
    """The command cannot be run, or its exit code means that trying again cannot help."""


class Command(Struct, frozen=True, kw_only=True):
    """A command, checked."""

    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]
    stdin: str
    expect: frozenset[int]
    permanent: frozenset[int]
    take: str
    limits: ProcessLimits
    output: int  # bytes


def register_exec(registry: Registry, *, memory: Callable[[], int]) -> None:
    """Register the handler `exec`; `memory`: the bytes that a command may use unless its job sets a limit."""
    registry.add("exec", Exec(memory), rules=ExecRules())


class ExecRules:
    """Rules that the params of an `exec` job must satisfy."""

    def check(self, params: Mapping[str, Any], *, partial: bool) -> None:
        command_of({"argv": ["x"], **params} if partial else params)

    def check_by_api(self, params: Mapping[str, Any]) -> None:
        """Accept all: a caller that may add commands (an admin) may add any."""

    def target_of(self, params: Mapping[str, Any]) -> str:  # noqa: ARG002  a command has no target
        return ""


class Exec:
    """The handler; `command_of` checks its params."""

    def __init__(self, memory: Callable[[], int]) -> None:
        self._memory = memory

    async def __call__(
        self,
        ctx: Context,
        argv: Sequence[str],
        cwd: str = "",
        env: Mapping[str, Any] | None = None,
        stdin: str = "",
        expect: Any = (0,),
        permanent: Any = (),
        take: str = "tail",
        limits: Mapping[str, Any] | None = None,
    ) -> Observed:
        values = (argv, cwd, env or {}, stdin, expect, permanent, take, limits or {})
        try:
            command = command_of(dict(zip(KEYS, values, strict=True)))
        except InvalidInput as error:
            raise CommandRefused(str(error)) from None  # a resolved secret may be invalid for a command
        if command.limits.memory is None:
            command = msgspec.structs.replace(
                command, limits=msgspec.structs.replace(command.limits, memory=self._memory())
            )
        return judged(command, await run(command, ctx))


# params


def params_of(value: object, *, partial: bool) -> dict[str, Any]:
    """Return the params as a file writes them: a mapping, or the arguments alone."""
    if not isinstance(value, Mapping | list | str):
        raise InvalidInput("it is neither a list nor a mapping", cure=f"write {EXAMPLE}")
    params = dict(value) if isinstance(value, Mapping) else {"argv": value}
    ExecRules().check(params, partial=partial)
    return params


def command_of(params: Mapping[str, Any]) -> Command:
    """Return the command of these params, or raise `InvalidInput` with the place and the cure."""
    _check_keys(params, KEYS, "")
    limits = _mapping(params.get("limits") or {}, "limits", "{memory: 512 MB, cpu: 10s}")
    _check_keys(limits, _LIMITS, "limits")
    return Command(
        argv=_argv(params.get("argv")),
        cwd=_text(params.get("cwd") or "", "cwd") or None,
        env=_env(params.get("env") or {}),
        stdin=_text(params.get("stdin") or "", "stdin"),
        expect=_codes(params.get("expect", (0,)), "expect"),
        permanent=_codes(params.get("permanent", ()), "permanent"),
        take=_take(params.get("take", "tail")),
        limits=ProcessLimits(
            memory=_limit(limits, "memory", size_bytes, None),
            cpu=_limit(limits, "cpu", _seconds, None),
            files=_limit(limits, "files", _count, FILES),
        ),
        output=_limit(limits, "output", size_bytes, OUTPUT_BYTES) or OUTPUT_BYTES,
    )


def _argv(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        words = ", ".join(f'"{word}"' for word in value.split()[:8])
        raise InvalidInput(
            "argv is one text, and there is no shell to take it apart", where="argv", cure=f"write a list: [{words}]"
        )
    if not isinstance(value, Sequence) or not value or not all(isinstance(word, str) for word in value):
        raise InvalidInput("argv is no list of texts", where="argv", cure=f"write {EXAMPLE}")
    argv = tuple(_text(word, "argv") for word in value)
    if not argv[0]:
        raise InvalidInput("the command has no name", where="argv", cure=f"write {EXAMPLE}")
    if len(argv) > ARGUMENTS_MAX or sum(map(len, argv)) > ARGUMENTS_BYTES_MAX:
        cure = f"give at most {ARGUMENTS_MAX} of {format_size(ARGUMENTS_BYTES_MAX)} in all, and the bulk by stdin"
        raise InvalidInput(f"{len(argv)} arguments are too many or too long", where="argv", cure=cure)
    return argv


def _env(value: object) -> dict[str, str]:
    env = {}
    for name, given in _mapping(value, "env", "{LANG: C.UTF-8}").items():
        if not _VARIABLE.fullmatch(name):
            raise InvalidInput(f"{name[:60]!r} is no variable", where="env", cure="use letters, digits and _")
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        env[name] = str(given) if is_number else _text(given, f"env.{name}")
    return env


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidInput("it is no text without NUL", where=where, cure="write the text, in quotes if need be")
    return value


def _codes(value: object, where: str) -> frozenset[int]:
    codes = (value,) if isinstance(value, int) else value
    if (
        isinstance(codes, str)
        or not isinstance(codes, Sequence)
        or not all(isinstance(code, int) and not isinstance(code, bool) and 0 <= code <= 255 for code in codes)
    ):
        raise InvalidInput("these are no exit codes", where=where, cure="write numbers from 0 to 255: [0, 1]")
    return frozenset(codes)


def _take(value: object) -> str:
    if value not in TAKES:
        cure = f"write one of {', '.join(TAKES)}"
        raise InvalidInput(f"{str(value)[:60]!r} is unknown{did_you_mean(value, TAKES)}", where="take", cure=cure)
    return str(value)


def _mapping(value: object, where: str, example: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidInput("it is no mapping of names", where=where, cure=f"write {example}")
    return value


def _check_keys(values: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in values:
        if key not in keys:
            what = f"unknown key {str(key)[:60]!r}{did_you_mean(key, keys)}"
            raise InvalidInput(what, where=where, cure=f"known are {', '.join(keys)}")


def _limit(limits: Mapping[str, Any], name: str, read: Callable[[Any], int], usual: int | None) -> int | None:
    if limits.get(name) is None:
        return usual
    try:
        value = read(limits[name])
    except InvalidInput as error:
        raise error.at(f"limits.{name}") from None
    if value < 1:
        raise InvalidInput(f"{limits[name]!r} leaves nothing", where=f"limits.{name}", cure="give more")
    return value


def _seconds(value: Any) -> int:
    return -(-duration_ms(value) // 1000)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{value!r} is no number", cure="write how many files it may have open")
    return value


# one run


class Ran(Struct):
    """How a command ended, and its output."""

    ended: ProcessEnd
    stdout: Output
    stderr: Output
    is_over: bool  # it wrote more than it may
    stopped: str  # why it was asked to end, if it was


class Output(asyncio.Protocol):
    """Reader of a pipe: all of it counted and hashed, the last of it kept."""

    def __init__(self, keep: int, on_data: Callable[[int], None]) -> None:
        self.size = 0
        self.tail = bytearray()
        self.is_closed = asyncio.Event()
        self._keep, self._on_data = keep, on_data
        self._hash = hashlib.blake2b(digest_size=12)

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        self._hash.update(data)
        self.tail += data
        if len(self.tail) > self._keep:
            del self.tail[: -self._keep]
        self._on_data(len(data))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  of the protocol
        self.is_closed.set()

    @property
    def fingerprint(self) -> str:
        return self._hash.hexdigest()

    def text(self, size: int = TAIL_BYTES) -> str:
        """Return the end of the output, with control characters escaped."""
        text = bytes(self.tail[-size - MARGIN_BYTES :]).decode("utf-8", "replace")
        safe: str = HIDDEN.hide_in(text)  # before it is cut: half a secret is one, too
        return safe[-size:].translate(_CONTROLS)


async def run(command: Command, ctx: Context) -> Ran:
    """Start the command, read its output, and end it on request; nothing of it is left afterwards."""
    written, is_over = 0, False

    def on_data(size: int) -> None:
        nonlocal written, is_over
        written += size
        if written > command.output:
            is_over = True
            process.stop()

    tail = TAIL_BYTES + MARGIN_BYTES
    keep = RESULT_BYTES_MAX + 1 if command.take in {"stdout", "json"} else tail
    stdout, stderr = Output(max(keep, tail), on_data), Output(tail, on_data)
    process, pipes = _start(command, ctx)
    transports: list[asyncio.ReadTransport] = []
    try:
        for output in (stdout, stderr):
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(_factory(output), pipes[0])
            transports.append(transport)
            del pipes[0]  # the transport closes it
        ended, stopped = await _ended(process, ctx)
        await _drain(stdout, stderr)
    finally:
        process.stop()
        for transport in transports:
            transport.close()
        for pipe in pipes:
            pipe.close()
        await process.ended()
    return Ran(ended, stdout, stderr, is_over, stopped)


def _factory(output: Output) -> Callable[[], Output]:
    return lambda: output


def _start(command: Command, ctx: Context) -> tuple[Process, list[IO[bytes]]]:
    """Return the process, and the pipes to read its stdout and stderr from."""
    ends = [os.pipe(), os.pipe()]
    try:
        process = _process(command, ctx, *(writing for _, writing in ends))
    except BaseException as error:
        for reading, _ in ends:
            os.close(reading)
        if isinstance(error, OSError):
            raise _not_started(command, error) from error
        raise
    finally:
        for _, writing in ends:
            os.close(writing)
    return process, [os.fdopen(reading, "rb", 0) for reading, _ in ends]


def _process(command: Command, ctx: Context, stdout: int, stderr: int) -> Process:
    with tempfile.TemporaryFile() if command.stdin else Path(os.devnull).open("rb") as stdin:
        if command.stdin:
            stdin.write(command.stdin.encode("utf-8", "surrogateescape"))
            stdin.seek(0)
        return Process(
            command.argv,
            env={**_environment(ctx), **command.env},
            cwd=command.cwd,
            limits=command.limits,
            grace_ms=GRACE_MS,
            has_home=True,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )


def _environment(ctx: Context) -> dict[str, str]:
    """Return the environment of every command.  Hardly anything of the node's own: it is full of secrets."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
    ours = {"POLLUX_JOB": ctx.job.id, "POLLUX_RUN": ctx.run.id, "POLLUX_ATTEMPT": str(ctx.attempt)}
    if ctx.traceparent:
        ours["TRACEPARENT"] = ctx.traceparent
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **inherited, **ours}


async def _ended(process: Process, ctx: Context) -> tuple[ProcessEnd, str]:
    """Wait for the end; return how it ended, and why it was asked to, if it was.

    Cancelled twice, it stops waiting: the guard process ends it anyway.
    """
    try:
        return await process.ended(), ""
    except asyncio.CancelledError:
        process.stop()
        return await process.ended(), ctx.cancel_reason or "it was cancelled"


async def _drain(*outputs: Output) -> None:
    """Read the rest of the pipes, whose writers have ended."""
    waits = [asyncio.ensure_future(output.is_closed.wait()) for output in outputs]
    _, late = await asyncio.wait(waits, timeout=LEFTOVER_SECONDS)
    for wait in late:
        wait.cancel()


# results


def judged(command: Command, ran: Ran) -> Observed:
    """Return the result of a command that did what was expected; raise anything else as its fault."""
    name, ended = command.argv[0], ran.ended
    if ran.stopped:
        raise CommandFailed(f"{name} was ended: {ran.stopped}{_last_output(ran)}")
    if ran.is_over:
        raise CommandFailed(
            f"{name} wrote more than {format_size(command.output)} of output and was ended{_last_output(ran)}"
        )
    if ended.errno is not None:
        if ended.is_unready:
            raise CommandFailed(f"{name} cannot be started: no room for it and its folder: {os.strerror(ended.errno)}")
        failure = CommandFailed if ended.errno in _PASSING else CommandRefused
        raise failure(_cannot_start(command, ended.errno))
    if ended.signal is not None:
        raise CommandFailed(f"{name} {_killed(command, ended)}{_last_output(ran)}")
    if ended.exit_code in command.expect:
        return Observed(_result(command, ran), ran.stdout.fingerprint)
    error = CommandRefused if ended.exit_code in command.permanent else CommandFailed
    raise error(f"{name} {ended.words}{_last_output(ran)}")


def _result(command: Command, ran: Ran) -> Any:
    match command.take:
        case "tail":
            return {"exit": ran.ended.exit_code, "stdout": ran.stdout.text(), "stderr": ran.stderr.text()}
        case "none":
            return None
    if ran.stdout.size > RESULT_BYTES_MAX:
        size, most = format_size(ran.stdout.size), format_size(RESULT_BYTES_MAX)
        raise CommandRefused(f"{command.argv[0]} wrote {size} to stdout, at most {most} can be taken; use take: tail")
    if command.take == "stdout":
        return bytes(ran.stdout.tail).decode("utf-8", "replace")
    try:
        return msgspec.json.decode(ran.stdout.tail)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CommandFailed(f"what {command.argv[0]} wrote to stdout is no JSON: {error}{_last_output(ran)}") from None


def _last_output(ran: Ran) -> str:
    """Return the end of the output, of stderr if there is any."""
    for name, output in (("stderr", ran.stderr), ("stdout", ran.stdout)):
        text = output.text(ERROR_OUTPUT_CHARS).strip()
        if text:
            return f"; {name}: {text}"
    return ""


def _killed(command: Command, ended: ProcessEnd) -> str:
    if ended.signal == signal.SIGXCPU:
        return f"used more than its {command.limits.cpu} s of CPU time ({ended.words})"
    if ended.signal == signal.SIGKILL:
        return f"{ended.words}, but not by Pollux; the machine may have run out of memory"
    return ended.words


def _not_started(command: Command, error: OSError) -> Exception:
    """Return the fault for a process that could not be made: no such folder, or no room on the machine."""
    if command.cwd is not None and not os.path.isdir(command.cwd):  # noqa: PTH112
        return CommandRefused(f"{command.argv[0]} cannot be started: {command.cwd} is no folder; correct `cwd`")
    return CommandFailed(f"{command.argv[0]} cannot be started: {error.strerror or error}")


def _cannot_start(command: Command, number: int) -> str:
    name = command.argv[0]
    path = os.path.join(command.cwd or "", name)  # noqa: PTH118
    match number:
        case errno.ENOENT if "/" in name and os.path.exists(path):  # noqa: PTH110
            why = "the interpreter named in its first line was not found; correct that line"
        case errno.ENOENT:
            why = "it was not found; install it, or name it with its whole path"
        case errno.EACCES:
            why = "it is not executable; chmod +x it, or run it by its interpreter"
        case errno.ETXTBSY:
            why = "it is just being written; it is tried again"
        case errno.ENOEXEC:
            why = "it is no program; begin it with #!, or run it by its interpreter"
        case _:
            why = os.strerror(number)
    return f"{name} cannot be started: {why}"
