"""Fixtures: a store on a real server behind a proxy, and a test bed for nodes on it.

Tests with nodes measure leases against time: those of one kind of server stay in one process of xdist, so that no two
of them slow each other down.
"""

import pytest

from tests.faults.backends import BACKENDS, POSTGRES, by_way_of, way_to
from tests.faults.partition import frozen_way, partition_before
from tests.faults.yard import FarYard


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items):
    for item in items:
        if "/faults/" in item.path.as_posix() and "far_yard" in item.fixturenames:
            params = item.callspec.params if hasattr(item, "callspec") else {}
            kind = params.get("backend", POSTGRES).name.partition("-")[0]  # a test of PgBouncer has no choice
            item.add_marker(pytest.mark.xdist_group(f"against time on {kind}"))


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request):
    return request.param


@pytest.fixture
def own_server(backend, tmp_path):
    """A server that may be hurt: durable, as one would set it up."""
    server = backend.start_server(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def url(request, backend):
    """A store for this test alone; on a server of its own if the test asks for one."""
    if "own_server" in request.fixturenames:
        return backend.url_on(request.getfixturevalue("own_server"))
    return backend.own_url("faults")


@pytest.fixture
async def proxy(url):
    proxy = await way_to(url)
    yield proxy
    await proxy.close()


@pytest.fixture
def far_url(url, proxy):
    """The same store, through the proxy."""
    return by_way_of(url, proxy)


@pytest.fixture
async def far_yard(tmp_path, backend, url):
    yard = FarYard(tmp_path, backend, url)
    try:
        yield yard
    finally:
        await yard.close()


@pytest.fixture
async def partition(url):
    """A way to the store for one node, which can be cut: by a network namespace where that is allowed."""
    partition = await partition_before(url)
    yield partition
    await partition.close()


@pytest.fixture(params=["namespace", "proxy"])
async def any_partition(request, url):
    """The same, and the way for machines where it is not; there it is the only one, and printed as such."""
    partition = await (partition_before(url) if request.param == "namespace" else frozen_way(url))
    yield partition
    await partition.close()
