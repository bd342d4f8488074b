"""Which processes are there, and who leads?"""

from __future__ import annotations

from typing import Any

import msgspec

from pollux.server.identity import Role
from pollux.server.routing import Desk, Routes

routes = Routes("nodes")


@routes.get("/api/v2/nodes", Role.VIEWER)
async def list_nodes(desk: Desk) -> dict[str, Any]:
    return {"nodes": msgspec.to_builtins(await desk.verbs.nodes())}
