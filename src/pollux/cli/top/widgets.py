"""Widgets of `pollux top`: the table, and its dialogs: a question, a text, the dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Static

from pollux.cli.output import ago, clean
from pollux.model import Run
from pollux.units import format_moment

HELP = """\
[b]Moving[/b]      up down page-up page-down home end     [b]q[/b] quit     [b]ctrl+z[/b] rest, until `fg`
[b]/[/b]           filter: part of an id or name, or group:edge target:db-1 tag:fast; escape takes it away
[b]s[/b]  [b]S[/b]        sort by the next key; reverse
[b]p[/b]           pause the job, or resume it
[b]r[/b]           run the job now, whatever its schedule says
[b]c[/b]           cancel the live runs of the job
[b]w[/b]           why does it run, or not, and what is the cure
[b]d[/b]           dead letters: look, revive, drop

The sparkline shows how long the latest runs took (high: long; a cross: failed).  "fresh" is how old the last success
is, against what was planned.  Everything is asked of the store once a second, and nothing while a screen like this one
is in front.
"""


Rows = Mapping[str, tuple[Text, ...]]  # by the key of the row


class FittedTable(DataTable[Any]):
    """A table of rows with keys, one text a column, whose columns fit their cells before anything is drawn.

    Textual measures new cells only when the table is idle, and caches what it drew by a key without the width: a cell
    that was drawn too early stays cut off ("hom" for "home") until something else changes.
    """

    def show(self, rows: Rows) -> None:
        """Fill it anew if the keys are others, else change the cells that differ."""
        self._fit(rows)
        if [key.value for key in self.rows] != list(rows):
            self.clear()
            for key, cells in rows.items():
                self.add_row(*cells, key=key)
            return
        for key, cells in rows.items():
            for column, cell in zip(self.ordered_columns, cells, strict=True):
                if self.get_cell(key, column.key) != cell:
                    self.update_cell(key, column.key, cell)

    def _fit(self, rows: Rows) -> None:
        for number, column in enumerate(self.ordered_columns):
            column.auto_width = False
            column.width = max(cell_len(str(column.label)), *(cells[number].cell_len for cells in rows.values()), 1)


class Question(ModalScreen[bool]):
    """A question that is answered with yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self.question}\n\ny  yes      n  no"), classes="box", id="question")

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001  textual calls it so
        self.dismiss(answer)


class MessageDialog(ModalScreen[None]):
    """A text, until any of the usual keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,w,question_mark,space", "dismiss", "back")]

    def __init__(self, text: Text) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        yield Static(self.text, classes="box", id="message")

    async def action_dismiss(self, result: None = None) -> None:
        self.dismiss(result)


class DeadLetters(Screen[str]):
    """The newest dead letters; answers what was done, in words."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "act('revive')", "revive"),
        Binding("x", "act('drop')", "drop"),
        Binding("enter", "show", "error"),
        Binding("escape,q,d", "leave", "back"),
    ]

    def __init__(self, runs: tuple[Run, ...], count: int, now_ms: int, act: Callable[..., Awaitable[str]]) -> None:
        super().__init__()
        self.runs, self.count, self.now_ms, self._act = list(runs), count, now_ms, act
        self.message = ""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(id="dead-title")
            yield FittedTable(id="dead", cursor_type="row", zebra_stripes=True)
            yield Static(id="dead-message")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(FittedTable).add_columns("id", "job", "ended", "deaths", "error")
        self._fill()

    def _fill(self) -> None:
        table = self.query_one(FittedTable)
        table.show({run.id: self._cells_of(run) for run in self.runs})
        shown = f", the newest {len(self.runs)} are shown" if self.count > len(self.runs) else ""
        self.query_one("#dead-title", Static).update(Text(f"dead letters: {self.count:,}{shown}", "bold"))
        table.focus()

    def _cells_of(self, run: Run) -> tuple[Text, ...]:
        when, error = ago(run.finished_ms, now=self.now_ms), clean(run.error.partition("\n")[0])
        return Text(run.id), Text(run.job_id), Text(when), Text(str(run.dead_letters)), Text(error, "red")

    def _chosen(self) -> Run | None:
        row = self.query_one(FittedTable).cursor_row
        return self.runs[row] if 0 <= row < len(self.runs) else None

    def on_data_table_row_selected(self) -> None:
        self.action_show()

    def action_show(self) -> None:
        run = self._chosen()
        if run is not None:
            due = format_moment(run.due_ms)
            self.app.push_screen(
                MessageDialog(Text(f"{run.id} of job {run.job_id}, due {due}\n\n{clean_lines(run.error)}"))
            )

    def action_act(self, verb: str) -> None:
        run = self._chosen()
        if run is None:
            return
        what = "Run it again" if verb == "revive" else "Forget it for good"

        async def answered(answer: bool | None) -> None:  # noqa: FBT001  textual calls it so
            if answer:
                self.message = await self._act(verb, run)
                self.query_one("#dead-message", Static).update(Text(self.message, "bold"))
                if not self.message.startswith("!"):
                    self.runs.remove(run)
                    self.count -= 1
                    self._fill()

        self.app.push_screen(Question(f"{what}: {run.id} of job {run.job_id}?"), answered)

    def action_leave(self) -> None:
        self.dismiss(self.message)


def clean_lines(text: str) -> str:
    """Of several lines, each clean."""
    return "\n".join(clean(line) for line in text.splitlines())
