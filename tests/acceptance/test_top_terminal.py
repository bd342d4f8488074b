"""`pollux top` as a real program in a real terminal: it draws, obeys keys, rests, and gives the terminal back."""

import asyncio
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from pollux import Pollux
from pollux.model import Interval, Job
from tests.acceptance.terminal import PATIENCE_SECONDS, Terminal

OTHER_SCREEN, OWN_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
CTRL_Z = b"\x1a"
# The program with this terminal as its own, as a shell would start it.
IN_FRONT = """
import fcntl, os, sys, termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "pollux", *sys.argv[1:]])
"""


class Screen:
    """Somebody before a terminal in which `pollux top` runs, with a few jobs in the store."""

    def __init__(self, folder: Path) -> None:
        self.store = f"sqlite:///{folder}/p.db"
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.fill("home", "away")
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_FRONT, "top", "--store", self.store],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=Terminal(folder).environ({"TERM": "xterm-256color"}),
            start_new_session=True,
        )

    def fill(self, *ids: str) -> None:
        async def put() -> None:
            app = Pollux(self.store, actor="test")
            await app.open()
            try:
                await app.put_jobs([Job(id=id, handler="h", schedule=Interval(3_600_000)) for id in ids])
            finally:
                await app.close()

        asyncio.run(put())

    def press(self, keys: bytes) -> None:
        """In one write."""
        os.write(self.master, keys)

    def until(self, wanted: bytes) -> None:
        """It was drawn since the last time that something was waited for."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wanted not in self.seen:
            assert time.monotonic() < deadline, (wanted, self.seen[-2_000:])
            self._read()
        self.seen = self.seen.partition(wanted)[2]

    def _read(self) -> None:
        if select.select([self.master], [], [], 0.1)[0]:
            self.seen += os.read(self.master, 65_536)

    @property
    def is_as_it_was(self) -> bool:
        return termios.tcgetattr(self.slave)[:4] == self.before[:4]

    def rests(self) -> None:
        """It was stopped; what it draws on the way is read, else it waits for us."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, "it does not rest"
            self._read()

    def ends_well(self) -> None:
        self.press(b"q")
        self.until(OWN_SCREEN)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read()
        assert self.process.poll() == 0
        assert b"Traceback" not in self.seen
        assert self.is_as_it_was

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def screen(tmp_path):
    screen = Screen(tmp_path)
    try:
        screen.until(OTHER_SCREEN)
        screen.until(b"home")
        yield screen
    finally:
        screen.close()


def test_it_draws_and_obeys_keys(screen):
    screen.press(b"?")
    screen.until(b"dead letters: look, revive, drop")
    screen.press(b"\x1b")
    # A lone escape is told from a sequence by what does not follow: the next key may come once this one was obeyed,
    # and it was when a job is shown that came later, for nothing is asked while the help is in front.
    screen.fill("abroad")
    screen.until(b"abroad")
    screen.ends_well()


def test_keys_that_come_at_once_are_all_heard(screen):
    """As from a program, or over a slow line: the filter is typed before its box could be drawn."""
    screen.press(b"/away\r")
    screen.until(b"filter away")
    screen.press(b"/x/y\r")  # in the box, where the old one is selected, a slash is a character
    screen.until(b"filter x/y")
    screen.ends_well()


def test_by_ctrl_z_it_leaves_the_screen_and_comes_back(screen):
    screen.press(CTRL_Z)
    screen.until(OWN_SCREEN)
    screen.rests()
    assert screen.is_as_it_was
    screen.process.send_signal(signal.SIGCONT)
    screen.until(OTHER_SCREEN)
    screen.until(b"home")
    screen.fill("abroad")
    screen.until(b"abroad")
    screen.ends_well()


@pytest.mark.parametrize("is_reset", [True, False], ids=["the shell resets the terminal", "nobody does"])
def test_who_was_stopped_without_a_word_gives_the_terminal_back_all_the_same(screen, is_reset):
    screen.process.send_signal(signal.SIGSTOP)
    screen.rests()
    if is_reset:
        termios.tcsetattr(screen.slave, termios.TCSANOW, screen.before)
    screen.process.send_signal(signal.SIGCONT)
    screen.until(OTHER_SCREEN)
    screen.until(b"home")
    assert not screen.is_as_it_was, "it has the keys one by one"
    screen.press(b"?")
    screen.until(b"dead letters: look, revive, drop")
    screen.press(b"\r")
    screen.fill("abroad")
    screen.until(b"abroad")
    screen.ends_well()


def test_without_textual_it_names_the_cure(tmp_path):
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "textual.py").write_text("raise ModuleNotFoundError('hidden', name='textual')\n")
    master, slave = pty.openpty()
    program = [sys.executable, "-m", "pollux", "top", "--store", "sqlite:///p.db"]
    environ = Terminal(tmp_path).environ({"PYTHONPATH": str(tmp_path / "hide")})
    try:
        done = subprocess.run(program, stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=environ, check=False)
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 1
    assert b'pip install "pollux-scheduler[tui]"' in done.stderr
