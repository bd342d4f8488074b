"""What is open while a store is?  The connections, the ear, and what was learnt through them."""

from __future__ import annotations

import asyncio

from pollux.model import Node
from pollux.store.postgres.bell import Ear
from pollux.store.postgres.database import Database
from pollux.store.postgres.grants import Grants


class Door:
    """What is opened and closed, for a handle and those of other versions that were made from it."""

    database: Database
    ear: Ear

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pid = 0
        self.counted: set[int] = set()  # the versions that have their counts
        self.grants = Grants()
        self.kept: tuple[int, str] | None = None  # nobody had more finished runs when these wrote last
        self.beats: dict[str, Node] = {}  # the last of whoever beats here
