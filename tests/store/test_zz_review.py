from tests.store.test_redis_cluster import *
from tests.store.test_redis_cluster import nodes, namespace
TestOnACluster=None
async def test_zz_timing_is_passed_over_and_asked_last_from_then_on(nodes, namespace):
    """It takes connections and says nothing, as a machine that is stuck does; the others know who owns our slot."""
    asked = []
    hung = await asyncio.start_server(lambda _, writer: asked.append(writer), "127.0.0.1", 0)
    address = f"127.0.0.1:{hung.sockets[0].getsockname()[1]}"
    store = RedisStore(f"{nodes.url.replace('://', f'://{address},')}?namespace={namespace}")
    import time; t0=time.monotonic()
    P=lambda *x: print(round(time.monotonic()-t0,2),*x)
    try:
        await store.open(); P('open')
        assert len(asked) == 1
        await store._link._doubt()
        await given(store, a_run("a"))
        assert ids(await claim(store, 1)) == ["a"]
        assert len(asked) == 1

        P('claimed'); waiting = asyncio.create_task(store.claim(node="n", token="t", limit=1, lease_ms=30_000, wait_ms=60_000))
        await hears_again(store._runs_ear); P('hears')
        await given(store, a_run("b", due_ms=0)); P("given")
        assert ids((await waiting).runs) == ["b"]
    finally:
        P('end', len(asked))
        await store.close(); P('closed')
        for writer in asked:
            writer.close()
        hung.close()


