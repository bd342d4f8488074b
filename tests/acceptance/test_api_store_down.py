"""Answers of the API while its store refuses every connection."""

import pytest

from tests.acceptance.api_world import eventually, served
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer


def a_server(kind, folder):
    return RedisServer(folder).start() if kind == "redis" else PostgresServer().start()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_a_store_that_cannot_be_reached_is_told_as_that_and_not_as_a_slow_one(kind, tmp_path):
    server = a_server(kind, tmp_path)
    try:
        async with served(server.url if kind == "redis" else server.url()) as api:
            await api.ok("GET", "/api/v2/jobs")
            server.kill()

            async def is_known_to_be_away():
                answer = await api("POST", "/api/v2/jobs", {"id": "a", "handler": "fine"})
                return answer if answer.status == 503 and "unavailable" in answer.json["title"] else None

            answer = await eventually(is_known_to_be_away, "it is told in other words")
            assert answer.json["title"] == "store unavailable"
            assert "Connection refused" in answer.json["detail"]
            server.start()
    finally:
        server.stop()
