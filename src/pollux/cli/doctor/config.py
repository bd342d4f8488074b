"""Checks of the config, and of the code and the secrets that it names."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from pollux.cli.doctor.finding import DoctorFinding, fail, ok, warn
from pollux.cli.target import find_code_here, load_leniently, store_lacks, with_own_code
from pollux.config import Config, load_config
from pollux.config.lint import config_warnings, warnings_of_jobs, with_jobs_of_code
from pollux.errors import InvalidConfig, InvalidInput, PolluxError
from pollux.secrets import MASK, at_place
from pollux.store.local_files import announced_in
from pollux.units import counted

PROBLEMS_SHOWN = 20


def look_at_setup(path: str, store: str | None, app: str | None) -> tuple[Config | None, list[DoctorFinding]]:
    """The config as far as it can be read, and what was found on the way."""
    try:
        config = load_config(path, environ=os.environ, arguments={"store": store, "app": app})
    except InvalidInput as error:
        return _as_far_as_read(path, store), [*_problems("config", error)]
    count = len(config.jobs)
    findings = [ok("config", f"{path} is valid; {counted(count, 'job')}"), *of_file(Path(path))]
    findings += [warn("config", _place_and_problem(doubt), doubt.cure) for doubt in _doubts(config_warnings, config)]
    findings += [*of_code(config), *of_server(config)]
    return _with_code(config), findings


def look_at_none(store: str | None, app: str | None) -> tuple[Config | None, list[DoctorFinding]]:
    """Where there is no file: what the code of an app sets, else a node that runs from here, else the defaults."""
    try:
        config = load_config(None, environ=os.environ, arguments={"store": store, "app": app})
    except InvalidInput as error:
        return _as_far_as_read(None, store), [*_problems("config", error)]
    if config.app:
        about = ok("config", f"there is no file; {config.app} sets the options", f"pollux config --app {config.app}")
        return _with_code(config), [about, *of_code(config)]
    about = ok("config", "there is none here; the defaults count", "pollux config --example")
    found = [node for node in announced_in(Path.cwd()) if MASK not in node.store]  # its password is not known here
    if len(found) == 1 and not config.is_given("store") and store_lacks(config.store):
        [node] = found
        about = ok("config", f"there is no file; the node that runs from here (pid {node.pid}) is on {node.store}")
        seats = {"seats": node.seats} if node.seats and not config.is_given("pool.seats") else {}
        config = msgspec.structs.replace(config, store=node.store, **seats)
    return config, [about]


def _with_code(config: Config) -> Config:
    """With what the code of its app sets; mistakes in the code are found elsewhere."""
    try:
        return with_own_code(config)
    except InvalidInput:
        return config


def of_file(path: Path) -> Iterator[DoctorFinding]:
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "everybody" if mode & stat.S_IWOTH else "its group"
        yield warn("config", f"{who} may change {path}, and it names code to run", f"chmod go-w {path}")


def of_code(config: Config) -> Iterator[DoctorFinding]:
    """Import what a start would import, and leave no trace of it."""
    from pollux.app import Pollux

    find_code_here()
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        app = Pollux.from_config(config, runs=False)  # secrets are looked at below
    except InvalidInput as error:
        yield from _problems("code", error)
        return
    finally:
        sys.dont_write_bytecode = before
    in_code = [job for job in app.declared_jobs() if job.id not in config.places]
    for doubt in _doubts(warnings_of_jobs, with_jobs_of_code(config, in_code)):
        yield warn("code", _place_and_problem(doubt), doubt.cure)
    yield ok("code", f"all {len({job.handler for job in app.declared_jobs()})} handlers are there")
    try:
        app.check_secrets()
    except InvalidInput as error:
        yield from _problems("secrets", error)
        return
    yield ok("secrets", "every reference can be resolved")


def of_server(config: Config) -> Iterator[DoctorFinding]:
    """What a start would refuse of the API: files that are not there, a token that is written out."""
    from pollux.server import server_options

    try:
        options = server_options(config, plans=config.plans)
    except InvalidInput as error:
        yield from _problems("api", error)
        return
    if options is not None and options.tls is not None:
        yield ok("api", f"the certificate {options.tls[0]} fits its key")


def _doubts(look: Callable[[Config, Mapping[str, str]], list[InvalidInput]], config: Config) -> list[InvalidInput]:
    """What works and should be changed; missing secrets are found elsewhere."""
    try:
        return look(config, os.environ)
    except PolluxError:
        return []


def _as_far_as_read(path: str | None, store: str | None) -> Config | None:
    try:
        return load_leniently(path, {"store": store})[0]
    except InvalidInput:
        return None


def _problems(about: str, error: InvalidInput) -> Iterator[DoctorFinding]:
    found = error.problems if isinstance(error, InvalidConfig) else (error,)
    for problem in found[:PROBLEMS_SHOWN]:
        yield fail(about, _place_and_problem(problem), problem.cure)
    if len(found) > PROBLEMS_SHOWN:
        yield fail(about, f"and {len(found) - PROBLEMS_SHOWN} more", "`pollux check` lists all")


def _place_and_problem(problem: InvalidInput) -> str:
    return at_place(problem.where, problem.what)
