"""What is said to somebody whose `--url` is nearly right: what is there, where, and what to write instead."""

import pytest

from pollux.client import Remote, address_of
from pollux.errors import StoreError, StoreRefused
from tests.acceptance.strangers import world
from tests.acceptance.test_api_sockets import CERTIFICATES


async def refusal(url, token=""):
    node = Remote(address_of(url), token)
    try:
        with pytest.raises(StoreError) as told:
            await node.open()
    finally:
        await node.close()
    return told.value


async def test_a_path_that_is_none_of_ours_is_told_with_the_address_to_write():
    async with world() as api:
        token, url = (await api.token("viewer")).secret, api.server.url
        told = await refusal(f"{url}/nope", token)
        right = Remote(address_of(f"{url}/"), token)
        await right.open()
        await right.close()
    assert isinstance(told, StoreRefused)
    assert str(told) == (f"a Pollux answers at {url}, but nothing of it under /nope; leave the path out: --url {url}")


async def test_no_tls_on_a_plain_port_is_told_with_the_address_to_write():
    async with world() as api:
        url = api.server.url
        told = await refusal(url.replace("http:", "https:"))
    assert str(told) == (
        f"{url.replace('http:', 'https:')} cannot be reached: no TLS is spoken there; "
        f"write {url}, or give the node a certificate (server.tls)"
    )


async def test_plain_words_on_a_port_with_tls_are_told_to_say_https():
    tls = (CERTIFICATES / "good.pem", CERTIFICATES / "server.key")
    async with world(tls=tls) as api:
        told = await refusal(api.server.url.replace("https:", "http:"))
    assert "closed the connection before it answered" in str(told)
    assert str(told).endswith("see that `pollux serve` runs there, and write https:// if it speaks TLS")


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("http://h:1", "http://h:1", ""),
        ("http://h:1/", "http://h:1", ""),
        ("https://h/a/b/", "https://h", "/a/b"),
        ("http://h/http://h", "http://h", "/http://h"),
    ],
)
def test_an_address_is_its_origin_and_its_path(url, origin, path):
    address = address_of(url)
    assert (address.origin, address.path, address.is_encrypted) == (origin, path, url.startswith("https"))
