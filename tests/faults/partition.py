"""Partition of one node by a network of its own.

    node ── veth ──║ link down ║── veth ── proxy ── server         (root, and a kernel that allows it)
    node ── proxy: nothing passes ── server                        (everywhere else)

Either way no connection ends: packets are lost, and what was under way arrives when the link is back.  Where nothing
may be skipped (`make test`) and we are root, the second does not replace the first: the test fails with the reason.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess

import pytest

from tests.faults.backends import by_way_of, way_to
from tests.faults.proxy import Proxy
from tests.servers.debian import IP, find_program

_numbers = itertools.count()


class Partition:
    """A way to a store that one node takes, and that can be cut."""

    how: str
    before: tuple[str, ...] = ()  # words that start a program on the far side

    def __init__(self, proxy: Proxy, url: str) -> None:
        self.proxy, self.url = proxy, url

    def cut(self) -> None:
        raise NotImplementedError

    def heal(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await self.proxy.close()


class FrozenWay(Partition):
    how = "a proxy that passes nothing on"

    def cut(self) -> None:
        self.proxy.freeze()

    def heal(self) -> None:
        self.proxy.mend()


class Namespace(Partition):
    how = "a network namespace whose link is down"

    def __init__(self, proxy: Proxy, url: str, name: str) -> None:
        super().__init__(proxy, url)
        self.name = name
        program = find_program(IP)
        inside = (program.binary, "netns", "exec", name)
        libraries = f"LD_LIBRARY_PATH={program.libraries}"  # of `ip` alone, and not of the node
        self.before = ("env", libraries, *inside, "env", "-u", "LD_LIBRARY_PATH") if program.libraries else inside

    def cut(self) -> None:
        _ip("link", "set", self.name, "down")

    def heal(self) -> None:
        _ip("link", "set", self.name, "up")

    async def close(self) -> None:
        await super().close()
        _remove(self.name)


async def partition_before(url: str) -> Partition:
    """The best there is on this machine; only root can make a network."""
    if os.geteuid() != 0:
        return await frozen_way(url)
    number = next(_numbers)
    name = f"plx{os.getpid()}x{number}"[:15]
    # A small network of addresses that are private and hardly used; two test processes take two of them.
    third, fourth = os.getpid() % 250, 4 * (number % 60)
    here, there = (f"10.213.{third}.{fourth + n}" for n in (1, 2))
    try:
        _make(name, here, there)
    except (OSError, subprocess.CalledProcessError) as error:
        _remove(name)
        _refuse_where_nothing_may_be_left_out(error)
        return await frozen_way(url)
    proxy = await way_to(url, here)
    return Namespace(proxy, by_way_of(url, proxy, here), name)


def _refuse_where_nothing_may_be_left_out(error: Exception) -> None:
    if os.environ.get("POLLUX_NO_SKIP") == "1":
        said = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else ""
        pytest.fail(
            f"no network namespace can be made here ({said or error}), and without one this test would prove nothing; "
            f"{IP.cure}, and let root make networks (CAP_NET_ADMIN and CAP_SYS_ADMIN), or test as another user",
            pytrace=False,
        )


async def frozen_way(url: str) -> FrozenWay:
    proxy = await way_to(url)
    return FrozenWay(proxy, by_way_of(url, proxy))


def _make(name: str, here: str, there: str) -> None:
    _ip("netns", "add", name)
    _ip("link", "add", name, "type", "veth", "peer", "name", "out", "netns", name)
    _ip("addr", "add", f"{here}/30", "dev", name)
    _ip("link", "set", name, "up")
    for words in (
        ["addr", "add", f"{there}/30", "dev", "out"],
        ["link", "set", "out", "up"],
        ["link", "set", "lo", "up"],
    ):
        _ip("-n", name, *words)


def _remove(name: str) -> None:
    """Whatever is there of it; the pair of links goes with either end."""
    with contextlib.suppress(FileNotFoundError):
        _ip("link", "del", name, check=False)
        _ip("netns", "del", name, check=False)


def _ip(*words: str, check: bool = True) -> None:
    program = find_program(IP)
    subprocess.run([program.binary, *words], check=check, capture_output=True, env=program.environment)
