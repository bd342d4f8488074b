"""Address policy of the http handler, for every notation of an address."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollux.errors import InvalidInput
from pollux.handlers.http import client as clients
from pollux.handlers.http.addresses import AddressPolicy, Reach, is_host_name, literal, networks_of, reach_of
from pollux.handlers.http.errors import DeniedAddress
from tests.http_world import Names, a_context, an_http, serve_raw

DENIED_V4 = ["127.0.0.1", "127.8.9.10", "169.254.169.254", "10.0.0.5", "172.16.0.1", "172.31.255.254", "192.168.1.1",
             "0.0.0.0", "0.1.2.3", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1",
             "239.255.255.250", "255.255.255.255", "198.18.0.1", "240.0.0.1"]  # fmt: skip
DENIED_V6 = ["::1", "::", "fe80::1", "fe80::a9fe:a9fe", "febf::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254",
             "fec0::1",
             "ff02::1", "100::1", "2001:db8::1", "3fff::1", "5f00::1", "64:ff9b:1::a00:1", "2001::1",
             "fd12::5efe:808:808", "fe80::5efe:808:808", "ff02::5efe:808:808", "fd00:ec2::5efe:808:808",
             "64:ff9b:1::808:808", "64:ff9b:1:a9fe:a9:fe00::1"]  # fmt: skip
ODD = [
    "http://localhost/", "http://LOCALHOST/", "http://localhost./", "http://ip6-localhost/", "http://127.1/",
    "http://127.0.1/", "http://2130706433/", "http://0x7f000001/", "http://0x7f.0x0.0x0.0x1/", "http://0177.0.0.1/",
    "http://00000177.0.0.1/", "http://0x7F.1/", "http://017700000001/", "http://0/", "http://0x0/", "http://127.0.0.1./",
    "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[0:0:0:0:0:ffff:7f00:1]/", "http://[::127.0.0.1]/",
    "http://[::ffff:0:127.0.0.1]/", "http://[64:ff9b::127.0.0.1]/", "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:7f00:1::]/", "http://[2002:a9fe:a9fe::1]/", "http://[2001:0:7f00:1::]/",
    "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/", "http://[2606:4700::5efe:a9fe:a9fe]/",
    # circled and fullwidth digits and letters, ideographic full stops
    "http://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/",
    "http://\uff11\uff12\uff17.\uff10.\uff10.\uff11/",
    "http://127\u30020\u30020\u30021/",
    "http://\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54/",
    "http://169.254.169.254/latest/meta-data/", "http://[fe80::1%25eth0]/", "http://[::1%251]/",
    "http://metadata.google.internal/computeMetadata/v1/", "http://METADATA.google.internal./", "http://metadata/",
    "http://instance-data/", "http://rebound.example/", "http://mixed.example/", "http://mapped.example/",
    "http://user@127.0.0.1/", "http://example.com@127.0.0.1/", "http://127.0.0.1:80@example.com/", "http://@127.0.0.1/",
    "http://example.com\\@127.0.0.1/", "http://127.0.0.1\\.example.com/", "http:\\\\127.0.0.1/", "http:/127.0.0.1/",
    "http:127.0.0.1", "http:///127.0.0.1/", "//127.0.0.1/", "127.0.0.1", "localhost:80", "http://", "http://:80/",
    "http://127.0.0.1%2f@example.com/", "http://127.0.0.1\t/", "http://127.0.0.1\n.example.com/", " http://127.0.0.1/",
    "http://256.256.256.256/", "http://1.2.3.4.5/", "http://0x100000000/", "http://4294967296/", "http://127.0.0.0x1ff/",
    "http://%31%32%37.0.0.1/", "http://127.0.0.1:0/", "http://127.0.0.1:99999/", "http://[::1/", "http://::1/",
    "http://[127.0.0.1]/", "file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1:70/_", "dict://127.0.0.1:11211/",
    "unix:///run/docker.sock", "http+unix://%2Frun%2Fdocker.sock/", "ws://127.0.0.1/", "data:text/plain,x",
    "javascript:alert(1)", "jar:http://127.0.0.1!/", "HTTP://127.0.0.1/", "hTtPs://127.0.0.1/",
]  # fmt: skip
NAMES = Names(
    {
        "localhost": ["127.0.0.1", "::1"],
        "localhost.": ["127.0.0.1"],
        "ip6-localhost": ["::1"],
        "rebound.example": ["10.0.0.7"],
        "mixed.example": ["93.184.216.34", "127.0.0.1"],
        "mapped.example": ["::ffff:169.254.169.254"],
    }
)


@pytest.fixture
async def loopback_server():
    """Start servers on loopback addresses; answers the port of each."""
    servers = []

    async def start(seen: list, host: str, port: int = 0) -> int:
        server = await serve_raw(seen, host, port)
        servers.append(server)
        return server.sockets[0].getsockname()[1]

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


def spellings(text: str) -> list[str]:
    """One IPv4 address in the ways that somebody who wants to get past us would write it."""
    address = IPv4Address(text)
    number, parts = int(address), [int(part) for part in text.split(".")]
    tail = f"{number >> 16:x}:{number & 0xFFFF:x}"
    a, b, c, d = parts
    return [
        text,
        str(number),
        f"0x{number:x}",
        f"0{number:o}",
        ".".join(f"0x{part:x}" for part in parts),
        ".".join(f"0{part:o}" for part in parts),
        f"{a}.{number & 0xFFFFFF}",
        f"{a}.{b}.{c << 8 | d}",
        f"0x{a:x}.{b}.0{c:o}.{d}",
        f"{text}.",
        f"[::ffff:{text}]",
        f"[::ffff:{tail}]",
        f"[::{text}]",
        f"[::ffff:0:{text}]",
        f"[64:ff9b::{text}]",
        f"[2002:{tail}::1]",
        f"[2001:0:808:808:0:0:{~number >> 16 & 0xFFFF:x}:{~number & 0xFFFF:x}]",
        f"[2606:4700::5efe:{tail}]",
        f"[2606:4700::200:5efe:{tail}]",
    ]


def corpus() -> list[str]:
    hosts = [host for text in DENIED_V4 for host in spellings(text)] + [f"[{text}]" for text in DENIED_V6]
    return [f"http://{host}/" for host in hosts] + ODD


async def test_nothing_of_the_corpus_gets_past_for_a_job_that_came_by_api():
    """Refused as a value, or denied before any socket is opened.  Connecting would end as another fault."""
    urls, passed = corpus(), []
    assert len(urls) >= 300
    http = an_http(resolver=NAMES)
    for url in urls:
        try:
            http.check({"url": url}, partial=False)
            await http(a_context("api"), url=url, timeout="1s")
        except (InvalidInput, DeniedAddress):
            continue
        except Exception as error:  # noqa: BLE001  whatever it was, it went further than it may
            passed.append(f"{url}: {type(error).__name__}: {error}")
        else:
            passed.append(f"{url}: answered")
    await http.close()
    assert not passed, passed


FORMS = {  # where an IPv4 address stands in an IPv6 one: the rest of the bits, and the address put into them
    "compatible": ("::/96", lambda rest, inner: inner),
    "mapped": ("::ffff:0:0/96", lambda rest, inner: inner),
    "translated": ("::ffff:0:0:0/96", lambda rest, inner: inner),
    "NAT64": ("64:ff9b::/96", lambda rest, inner: inner),
    "local NAT64, /96": ("64:ff9b:1::/48", lambda rest, inner: rest >> 32 << 32 | inner),
    "local NAT64, /64": ("64:ff9b:1::/48", lambda rest, inner: rest >> 64 << 64 | inner << 24 | rest & 0xFFFFFF),
    "local NAT64, /56": (
        "64:ff9b:1::/48",
        lambda rest, inner: rest >> 72 << 72 | inner >> 24 << 64 | (inner & 0xFFFFFF) << 32 | rest & 0xFFFFFFFF,
    ),
    "local NAT64, /48": (
        "64:ff9b:1::/48",
        lambda rest, inner: inner >> 16 << 64 | (inner & 0xFFFF) << 40 | rest & 0xFFFFFFFFFF,
    ),
    "6to4": ("2002::/16", lambda rest, inner: inner << 80 | rest & (1 << 80) - 1),
    "Teredo server": ("2001::/32", lambda rest, inner: inner << 64 | rest & (1 << 64) - 1),
    "Teredo client": ("2001::/32", lambda rest, inner: rest >> 32 << 32 | ~inner & 0xFFFFFFFF),
    "ISATAP": ("::/0", lambda rest, inner: rest >> 64 << 64 | 0x5EFE << 32 | inner),
    "ISATAP, universal": ("::/0", lambda rest, inner: rest >> 64 << 64 | 0x02005EFE << 32 | inner),
}
NUMBERS = st.integers(0, 2**32 - 1) | st.sampled_from([int(IPv4Address(text)) for text in [*DENIED_V4, "8.8.8.8"]])
PREFIXES = st.integers(0, 2**64 - 1) | st.sampled_from([int(IPv6Address(text)) >> 64 for text in DENIED_V6])


@given(st.sampled_from(sorted(FORMS)), NUMBERS, PREFIXES, st.integers(0, 2**64 - 1))
@example("ISATAP", int(IPv4Address("8.8.8.8")), int(IPv6Address("fd12::")) >> 64, 0)
@example("ISATAP", int(IPv4Address("8.8.8.8")), int(IPv6Address("fe80::")) >> 64, 0)
@example("ISATAP", int(IPv4Address("8.8.8.8")), int(IPv6Address("ff02::")) >> 64, 0)
@example("ISATAP", int(IPv4Address("8.8.8.8")), int(IPv6Address("fd00:ec2::")) >> 64, 0)
@example("local NAT64, /96", int(IPv4Address("8.8.8.8")), 0, 0)
@example("local NAT64, /48", int(IPv4Address("169.254.169.254")), 0, 1)
def test_the_worst_reading_of_an_address_counts_the_outer_one_included(form, number, prefix, low):
    """However an IPv4 address stands in an IPv6 one, neither makes the other more harmless than it is alone."""
    network, put_in = FORMS[form]
    outer = ip_network(network)
    free = (1 << 128 - outer.prefixlen) - 1
    address = IPv6Address(int(outer[0]) | put_in(prefix << 64 | low, number) & free)
    inner = IPv4Address(number)

    padding = form in {"local NAT64, /48", "local NAT64, /56", "local NAT64, /64"} and number < 2**24
    if not padding and int(address) > 1:
        assert reach_of(address) <= reach_of(inner)
    alone = ip_address(int(address) & ~0xFFFFFFFFFFFFFFFF | 0x1111111111111111)  # the same prefix, nothing inside
    if outer.prefixlen < 64 and "local" not in form:
        assert reach_of(address) <= reach_of(alone)
    if "local" in form:
        assert reach_of(address) <= Reach.INSIDE


def test_a_private_address_behind_a_local_nat64_prefix_stays_open_to_a_file_and_to_what_was_allowed():
    """The paddings of other prefix lengths are no readings of their own."""
    address = IPv6Address("64:ff9b:1::10.9.8.7")
    assert AddressPolicy(inside=True).refusal(address) == ""
    assert AddressPolicy(inside=False, allowed=networks_of(["10.0.0.0/8"])).refusal(address)
    assert AddressPolicy(inside=False, allowed=networks_of(["10.0.0.0/8", "64:ff9b:1::/48"])).refusal(address) == ""


@pytest.mark.parametrize("text", [*DENIED_V4, *DENIED_V6])
def test_a_file_may_name_loopback_and_private_addresses_and_never_the_others(text):
    address = ip_address(text)
    refused = bool(AddressPolicy(inside=True).refusal(address))
    assert refused is (reach_of(address) is Reach.NEVER)
    is_near = text.startswith(("127.", "10.", "172.", "192.168.", "100.64.")) or text in {"::1", "fc00::1"}
    assert not (refused and is_near)
    assert refused or not text.startswith(("169.254.", "fe80", "0.", "224.", "239.", "255.", "ff02"))


@pytest.mark.parametrize(
    "text", ["93.184.216.34", "8.8.8.8", "1.1.1.1", "2606:4700::1111", "172.32.0.1", "100.128.0.1"]
)
def test_a_public_address_is_open_to_everybody(text):
    assert AddressPolicy(inside=False).refusal(ip_address(text)) == ""


def test_allowed_networks_open_inside_addresses_and_nothing_that_is_never_reached():
    policy = AddressPolicy(inside=False, allowed=networks_of(["10.0.0.0/8", "169.254.0.0/16", "::1/128"]))
    assert policy.refusal(IPv4Address("10.9.8.7")) == ""
    assert policy.refusal(IPv6Address("::ffff:10.9.8.7")) == ""
    assert policy.refusal(IPv6Address("::1")) == ""
    assert "http.allow_networks" in policy.refusal(IPv4Address("192.168.0.1"))
    assert "never" in policy.refusal(IPv4Address("169.254.169.254"))
    assert policy.refusal(IPv6Address("2001:0:a00:1::ffff:ffff"))  # the server inside 10/8, the client 0.0.0.0


@pytest.mark.parametrize("value", ["10.0.0.1/8", "10.0.0.0/33", "x", "", 7, None])
def test_what_is_no_network_is_refused(value):
    with pytest.raises(InvalidInput, match="is no network"):
        networks_of([value])


@pytest.mark.parametrize("text", DENIED_V4)
def test_every_spelling_means_what_the_system_would_make_of_it(text):
    for host in spellings(text)[:9]:
        assert literal(host) == IPv4Address(socket.inet_ntoa(socket.inet_aton(host))) == IPv4Address(text)


@pytest.mark.parametrize(
    "host", ["example.com", "a", "x_y.de", "0x.example", "1.2.3.4.example", "xn--bcher-kva.example"]
)
def test_a_name_is_no_address(host):
    assert literal(host) is None
    assert is_host_name(host)


async def test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_judged(monkeypatch, loopback_server):
    """The name is bound anew between two polls: the first goes to the address that was judged, the second nowhere."""
    monkeypatch.setattr(clients, "DNS_TTL_S", 0)
    seen = []
    port = await loopback_server(seen, "127.0.0.1")
    await loopback_server(seen, "127.0.0.2", port)
    names = Names({"rebind.example": ["127.0.0.1"]})
    http = an_http(resolver=names, allow_networks=["127.0.0.1/32"])
    url = f"http://rebind.example:{port}/"

    first = await http(a_context("api"), url=url)
    names.known["rebind.example"] = ["127.0.0.2"]
    with pytest.raises(DeniedAddress, match=r"127\.0\.0\.2 is not a public address"):
        await http(a_context("api"), url=url)
    names.known["rebind.example"] = ["127.0.0.1", "127.0.0.2"]
    with pytest.raises(DeniedAddress, match=r"127\.0\.0\.2"):
        await http(a_context("api"), url=url)

    await http.close()
    assert first.value["status"] == 200
    assert seen == [("127.0.0.1", f"rebind.example:{port}")]
    assert names.asked == ["rebind.example"] * 3


async def test_rights_are_not_inherited_by_a_job_of_the_same_name_and_params(loopback_server):
    """A file's job was polled, deleted, and put again by API: its connection, and what was prepared, are not reused."""
    port = await loopback_server([], "127.0.0.1")
    http = an_http()
    url = f"http://127.0.0.1:{port}/"
    assert (await http(a_context("file:p.yaml"), url=url)).value["status"] == 200
    with pytest.raises(DeniedAddress):
        await http(a_context("api"), url=url)
    await http.close()
