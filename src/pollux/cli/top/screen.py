"""The full screen of `pollux top`: what is shown, and which key does what.

The terminal is restored as it was, also after a stop by SIGTSTP.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.drivers.linux_driver import LinuxDriver
from textual.widgets import Footer, Input, Static

from pollux.app import JobRow
from pollux.cli.jobs import run_one
from pollux.cli.live_table import TOP_COLUMNS, cells_of, held_pane, running_pane, top_header
from pollux.cli.output import BARS, ago, can_show, clean, now_ms
from pollux.cli.target import StoreConnection
from pollux.cli.top.board import SORTS, StoreSummary, Sweep, look_at, rows_for
from pollux.cli.top.widgets import HELP, DeadLetters, FittedTable, MessageDialog, Question
from pollux.errors import PolluxError
from pollux.model import Run, RunState
from pollux.store.contract import RunFilter
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol


class OwnTerminal(LinuxDriver):
    """Leaves the screen at Ctrl-Z, and takes it again.  A SIGSTOP comes without notice: the screen is still ours."""

    def _sigcont_application(self, *_: object) -> None:
        if self._auto_restart and not self._must_signal_resume and self._is_in_front():
            # Else the start would take a raw terminal for what it found, and leave it so in the end.
            self.suspend_application_mode()
            self._must_signal_resume = True
        super()._sigcont_application()

    def _is_in_front(self) -> bool:
        """May we touch the terminal?  In the background we would be stopped again."""
        try:
            return os.tcgetpgrp(self.fileno) == os.getpgrp()
        except OSError:  # it is not the terminal of our session, so we are never in the background
            return True


LOOK_SECONDS = 1.0
DEAD_SHOWN = 100


class Top(App[None]):
    """The whole store at one look, once a second."""

    CSS = """
    #header { height: 2; padding: 0 1; }
    #trouble { height: auto; padding: 0 1; display: none; }
    #jobs { height: 1fr; }
    #panes { height: 8; }
    .pane { width: 1fr; padding: 0 1; border-top: solid $surface-lighten-2; }
    #filter { display: none; height: 3; }
    #message-line { height: 1; padding: 0 1; }
    Question, MessageDialog { align: center middle; }
    .box { width: auto; max-width: 90%; height: auto; max-height: 90%; padding: 1 2; border: round $accent;
           background: $surface; overflow-y: auto; }
    #dead { height: 1fr; }
    #dead-title, #dead-message { height: 1; padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", priority=True),  # obeyed before the next key, which may be here already
        Binding("s", "sort", "sort"),
        Binding("S", "reverse", "reverse", show=False),
        Binding("p", "pause", "pause/resume"),
        Binding("r", "run_now", "run now"),
        Binding("c", "cancel", "cancel"),
        Binding("w", "why", "why"),
        Binding("d", "dead", "dead letters"),
        Binding("escape", "unfilter", "all", show=False),
        Binding("question_mark", "help", "help"),
        Binding("q,ctrl+c", "quit", "quit"),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, url: str, *, socket: Path | None = None, look_seconds: float = LOOK_SECONDS) -> None:
        super().__init__(driver_class=OwnTerminal)
        self._look_seconds = look_seconds
        self.link = StoreConnection(url, socket)
        self.sweep = Sweep()
        self.sort, self.is_reversed = next(iter(SORTS)), False
        self.look: StoreSummary | None = None
        self.rows: dict[str, JobRow] = {}
        self.looks = 0
        self._plain = not can_show(BARS)  # asked now: later our output is the screen's own
        self._wake = asyncio.Event()
        # Held here: another screen may be in front, or all of them closed, when a look comes back.
        self._header, self._trouble, self._message = (
            Static(id="header"),
            Static(id="trouble"),
            Static(id="message-line"),
        )
        self._runs_pane, self._held_pane = Static(id="running"), Static(id="held")
        self._table = FittedTable(id="jobs", cursor_type="row", zebra_stripes=True)
        self._box = Input(id="filter", placeholder="part of an id or name, or group:edge target:db-1 tag:fast")

    # the screen

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._trouble
        with Vertical():
            yield self._table
            with Horizontal(id="panes"):
                for pane in (self._runs_pane, self._held_pane):
                    with VerticalScroll(classes="pane", can_focus=False):
                        yield pane
        yield self._message
        yield self._box
        yield Footer()

    def on_mount(self) -> None:
        for column in TOP_COLUMNS:
            self._table.add_column(column, key=column)
        self._table.focus()
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # the shell drew over it
        self._header.update(Text(f"pollux top  {clean(self.link.name)}  opening ..."))
        self.run_worker(self._watch(), name="watch")

    async def on_unmount(self) -> None:
        await self.link.close()

    # looking

    async def _watch(self) -> None:
        """Look, show, rest; a key that changed something ends the rest."""
        while True:
            self._wake.clear()
            if len(self.screen_stack) == 1:  # a hidden table asks nothing
                await self._turn()
            try:
                async with asyncio.timeout(self._look_seconds):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _turn(self) -> None:
        try:
            await self.link.ask(self._read)
        except PolluxError as error:
            self._show_trouble(str(error))
        else:
            self._show_trouble("")
            self._show()
            if not self.sweep.is_whole:
                self._wake.set()
        self.looks += 1

    async def _read(self, operations: OperationsProtocol) -> None:
        look = await look_at(operations, now_ms())
        await self.sweep.go_on(operations)
        ids = self.sweep.first(self.sort, is_reversed=self.is_reversed)
        rows = await rows_for(operations, look, ids)
        self.sweep.learn(row.job for row in rows)
        self.look, self.rows = look, {row.job.id: row for row in rows}

    def _show_trouble(self, words: str) -> None:
        self._trouble.update(Text(clean(words), "bold red"))
        self._trouble.display = bool(words)

    def _show(self) -> None:
        look = self.look
        assert look is not None
        self._header.update(top_header(look, self.link.name))
        self._runs_pane.update(running_pane(look))
        self._held_pane.update(held_pane(look))
        self._show_jobs(look)

    def _show_jobs(self, look: StoreSummary) -> None:
        """The cursor stays on its job if that is still there."""
        table, wanted, chosen, place = self._table, list(self.rows), self.chosen(), self._table.cursor_row
        is_other = [key.value for key in table.rows] != wanted
        cells = {
            job_id: cells_of(row, TOP_COLUMNS, look.now_ms, plain=self._plain) for job_id, row in self.rows.items()
        }
        table.show(cells)
        if is_other and wanted:
            table.move_cursor(row=wanted.index(chosen) if chosen in wanted else min(place, len(wanted) - 1))
        table.border_title = self._title()
        table.styles.border_top = ("solid", "gray")

    def _title(self) -> str:
        read = len(self.sweep.entries)
        shown = f"{len(self.rows)} of {counted(read, 'job')}" if read > len(self.rows) else counted(read, "job")
        partly = "" if self.sweep.is_whole else " (still reading)"
        unread = sorted(self.sweep.unreadable)
        partly += f" and {len(unread)} that cannot be read ({unread[0]})" if unread else ""
        chosen = f", filter {self.sweep.text}" if self.sweep.text else ""
        return f"{shown}{partly}{chosen}, by {self.sort}{' reversed' if self.is_reversed else ''}"

    def chosen(self) -> str | None:
        """The job under the cursor."""
        keys = list(self._table.rows)
        return keys[self._table.cursor_row].value if 0 <= self._table.cursor_row < len(keys) else None

    def say(self, words: str) -> None:
        self._message.update(Text(clean(words), "bold"))
        self._wake.set()

    # keys

    def action_sort(self) -> None:
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]
        self.say(f"sorted by {self.sort}")

    def action_reverse(self) -> None:
        self.is_reversed = not self.is_reversed
        self.say(f"sorted by {self.sort}{' reversed' if self.is_reversed else ''}")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  textual's
        """In the box, and where there is another screen, a slash is a character."""
        return action != "filter" or not (self._box.display or len(self.screen_stack) > 1)

    def action_filter(self) -> None:
        self._box.display = True
        self._box.value = self.sweep.text
        self.screen.set_focus(self._box)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._filter(event.value.strip())

    def action_unfilter(self) -> None:
        self._filter(self.sweep.text if self._box.display else "")

    def _filter(self, text: str) -> None:
        self._box.display = False
        self._table.screen.set_focus(self._table)
        if text != self.sweep.text:
            self.sweep = Sweep(text)
            self.say(f"only {text}" if text else "all jobs")

    def action_pause(self) -> None:
        stops = () if self.look is None else self.look.stops
        is_paused = any(stop.key == f"stop:job:{self.chosen()}" for stop in stops)
        self._confirm("Resume job {}?" if is_paused else "Pause job {}?", _resume if is_paused else _pause)

    def action_run_now(self) -> None:
        self._confirm("Run job {} now?", _run)

    def action_cancel(self) -> None:
        self._confirm("Cancel the live runs of job {}?", _cancel)

    def _confirm(self, question: str, deed: Callable[[OperationsProtocol, str], Awaitable[str]]) -> None:
        """Ask before something is done to the job under the cursor, whose id is put into the question."""
        job_id = self.chosen()
        if job_id is None:
            return

        async def answered(answer: bool | None) -> None:  # noqa: FBT001  textual calls it so
            self.say(
                await self._result_of(lambda operations: deed(operations, job_id)) if answer else "nothing was done"
            )

        self.push_screen(Question(question.format(job_id)), answered)

    async def _result_of(self, deed: Callable[[OperationsProtocol], Awaitable[str]]) -> str:
        """What the deed answers, or the error, in words."""
        try:
            return await self.link.ask(deed)
        except PolluxError as error:
            return f"! {error}"

    async def action_why(self) -> None:
        job_id = self.chosen()
        if job_id is not None:

            async def why(operations: OperationsProtocol) -> str:
                answer = await operations.status.why(job_id)
                expected = ago(answer.expected_ms, now=now_ms())
                parts = (("", answer.reason), ("expected: ", expected), ("cure: ", answer.cure))
                return "\n".join(f"{name}{clean(value)}" for name, value in parts if value)

            self.push_screen(MessageDialog(Text(f"{job_id}\n\n{await self._result_of(why)}")))

    async def action_dead(self) -> None:
        try:
            page = await self.link.ask(
                lambda operations: operations.runs.list_runs(RunFilter(states=(RunState.DEAD,)), limit=DEAD_SHOWN)
            )
            counts = await self.link.ask(lambda operations: operations.status.counts())
        except PolluxError as error:
            self.say(f"! {error}")
            return
        if not page.runs:
            self.say("there are no dead letters")
            return
        self.push_screen(DeadLetters(page.runs, counts.dead, now_ms(), self._act_on), lambda done: self.say(done or ""))

    async def _act_on(self, verb: str, run: Run) -> str:
        async def act(operations: OperationsProtocol) -> str:
            if verb == "drop":
                return (
                    f"run {run.id} is forgotten"
                    if await operations.dead_letters.drop([run.id])
                    else f"! there is no run {run.id} any more"
                )
            [answer] = await operations.dead_letters.revive([run.id])
            return f"run {run.id} runs again" if answer.answer.value == "ok" else f"! {run.id}: {answer.answer.value}"

        return await self._result_of(act)

    def action_help(self) -> None:
        self.push_screen(MessageDialog(Text.from_markup(HELP)))


# what the keys do to a job, and the result in words


async def _pause(operations: OperationsProtocol, job_id: str) -> str:
    await operations.pauses.pause(job_id, reason="from pollux top")
    return f"job {job_id} is paused until it is resumed"


async def _resume(operations: OperationsProtocol, job_id: str) -> str:
    return f"job {job_id} {'goes on' if await operations.pauses.resume(job_id) else 'was not paused'}"


async def _run(operations: OperationsProtocol, job_id: str) -> str:
    made = await run_one(operations, job_id)
    return f"run {made.id} of job {job_id} is {made.state.value}"


async def _cancel(operations: OperationsProtocol, job_id: str) -> str:
    answers = await operations.runs.cancel(job_id, reason="from pollux top")
    count = counted(len(answers), "run")
    return f"{count} of job {job_id}: cancelled or asked to stop" if answers else "nothing is live"
