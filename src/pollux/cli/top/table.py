"""Table of `pollux top` whose columns are as wide as their widest cell before anything is drawn.

Textual measures new cells only when the table is idle, and keeps what it drew before by a key without the width: a cell
that was drawn too early stays cut off ("hom" for "home") until something else changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len
from rich.text import Text
from textual.widgets import DataTable

Rows = Mapping[str, tuple[Text, ...]]  # by the key of the row


class FittedTable(DataTable[Any]):
    """A table of rows with keys, one text a column."""

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
