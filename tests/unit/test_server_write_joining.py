"""Write joining: the writes of one event loop iteration are sent together."""

import asyncio

from pollux.server.connections import PIECE_BYTES, Joined


class Wire:
    """A transport that remembers."""

    def __init__(self):
        self.pieces, self.calls = [], []

    def write(self, data):
        assert not self.is_closing()
        self.pieces.append(data)

    def close(self):
        self.calls.append("close")

    def abort(self):
        self.calls.append("abort")

    def is_closing(self):
        return bool(self.calls)

    def pause_reading(self): ...

    def resume_reading(self): ...

    def get_write_buffer_size(self):
        return 7

    def get_extra_info(self, name):
        return name


def a_connection():
    wire = Wire()
    return wire, Joined(wire, asyncio.get_running_loop())


async def test_head_and_body_are_one_piece_and_the_next_answer_another():
    wire, connection = a_connection()
    connection.write(b"head ")
    connection.write(b"body")
    assert wire.pieces == []
    assert connection.get_write_buffer_size() == 7 + 9, "what waits here counts: it was not read by anybody"
    await asyncio.sleep(0)
    assert wire.pieces == [b"head body"]
    assert connection.get_write_buffer_size() == 7
    connection.write(b"again")
    await asyncio.sleep(0)
    assert wire.pieces == [b"head body", b"again"]


async def test_a_long_answer_does_not_collect_here():
    wire, connection = a_connection()
    connection.write(b"x" * (PIECE_BYTES - 1))
    connection.write(b"yz")
    assert [len(piece) for piece in wire.pieces] == [PIECE_BYTES + 1]
    connection.write(b"end")
    await asyncio.sleep(0)
    assert wire.pieces[1:] == [b"end"]


async def test_what_was_said_before_the_end_is_heard():
    wire, connection = a_connection()
    connection.write(b"head ")
    connection.write(b"body")
    connection.close()
    assert (wire.pieces, wire.calls) == ([b"head body"], ["close"])
    await asyncio.sleep(0)
    assert wire.pieces == [b"head body"]


async def test_what_is_cut_off_says_nothing_more():
    wire, connection = a_connection()
    connection.write(b"head")
    connection.abort()
    await asyncio.sleep(0)
    assert (wire.pieces, wire.calls) == ([], ["abort"])
    assert connection.get_extra_info("peername") == "peername", "all else is the transport's own"
