"""Operations on the config file of a node: reload it, preview a text, roll back, and the options in force."""

from __future__ import annotations

import asyncio

from pollux.app.operations.context import OperationGroup
from pollux.app.reload import ConfigDraft, Reloader, ReloadResult, RunningConfig
from pollux.config.descriptions import EffectiveOption
from pollux.config.file_history import SavedText
from pollux.config.load import file_source
from pollux.errors import InvalidInput


class ConfigFileOperations(OperationGroup):
    """Reload and roll back the file that the node of this process was started with."""

    async def reload(
        self,
        *,
        dry_run: bool = False,
        text: str | None = None,
        called: str = "",
        source: str = "",
        only: str = "",
        replace: bool = False,
    ) -> ReloadResult:
        """Read the file again and make it hold; `dry_run`: only say what would change.

        Raises what stands against it (`InvalidConfig` with every problem and its place, `Conflict`), and then nothing
        has changed.  With `text` (and `dry_run`): what would change if the file held that; `called` is its name for
        messages, `source` whose next text it is if not this file's.  `only`: the digest of the text that is meant.
        `replace`: also where it takes away jobs that another text of that name declares, or most of them.
        """
        reloader = self._reloader
        if text is None:
            return await reloader.reload(by=self._actor, dry_run=dry_run, only=only, replace=replace)
        if not dry_run:
            cure = f"say dry_run, or write it to {reloader.place}: it is read again by itself"
            raise InvalidInput("a text that is sent is looked at, and never applied", where="text", cure=cure)
        return await reloader.preview(ConfigDraft(text, called, file_source(source) if source else ""))

    async def file_in_force(self) -> RunningConfig:
        """By which options this node runs, and whether its file says the same."""
        reloader = self._reloader
        return await asyncio.to_thread(reloader.in_force)

    async def rollback(self, to: str | None = None, *, replace: bool = False) -> ReloadResult:
        """Put the text before back into the file (or that of the digest `to`) and make it hold; `replace` as above."""
        return await self._reloader.rollback(by=self._actor, to=to, replace=replace)

    async def file_versions(self) -> list[SavedText]:
        """The texts of the file that were applied, oldest first, the last ten."""
        return self._reloader.versions.all()

    async def options_in_force(self) -> list[EffectiveOption]:
        """Every option by which this node runs, with its origin."""
        assert self._context.node is not None, "options are read by an app"
        return self._context.node.options_in_force()

    @property
    def _reloader(self) -> Reloader:
        node = self._context.node
        if node is None or node.reloader is None or not node.reloader.config.path:
            raise InvalidInput(
                "there is no file to read again",
                where="config",
                cure="start it with one: pollux serve -c FILE; `pollux check --diff -c FILE` compares with the store",
            )
        return node.reloader
