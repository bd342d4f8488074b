"""The first token on a terminal: shown once, in plain sight of whoever started it, and never again."""

import os
import pty
import re
import select
import time

import pytest

from tests.acceptance.terminal import PATIENCE_SECONDS, Terminal, stopped

API = {"POLLUX_SERVER": "true", "TERM": "xterm"}
TOKEN = re.compile(rb"shown this once:\s+(pf_first_[\w-]{43})")


def seen_on(screen: int, wanted: re.Pattern[bytes]) -> bytes:
    text, deadline = b"", time.monotonic() + PATIENCE_SECONDS
    while not wanted.search(text) and time.monotonic() < deadline:
        if select.select([screen], [], [], 0.2)[0]:
            text += os.read(screen, 65_536)
    return text


@pytest.mark.parametrize("watch", ["--watch", "--no-watch"])
def test_the_first_start_on_a_terminal_shows_the_token_and_the_second_does_not(tmp_path, watch):
    here = Terminal(tmp_path, fresh=True)
    here.write("pollux.yaml", "store: sqlite:///pollux.db\nserver: {port: 0, socket: false}\n")
    screen, end = pty.openpty()
    shown = []
    for wanted in (TOKEN, re.compile(rb"started on|jobs 0")):
        with here.started("serve", watch, environ=API, stdin=end, stdout=end, stderr=end) as node:
            shown.append(seen_on(screen, wanted))
            stopped(node)
        while select.select([screen], [], [], 0)[0]:
            shown[-1] += os.read(screen, 65_536)
    os.close(end)
    os.close(screen)
    secret = (tmp_path / "pollux.db.token").read_bytes().strip()
    assert TOKEN.search(shown[0])[1] == secret
    assert shown[0].count(secret) == 1
    assert secret not in shown[1]
