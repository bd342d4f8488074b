"""Faults of the network and of the server of a store: real ones, on Redis and PostgreSQL.

Between the store and the server is a proxy that can be cut, frozen and made to lose an answer (`proxy.py`); the nodes
and the ledger that judges them are those of `tests/chaos`.

    POLLUX_FAULT_SECONDS=300 pytest tests/faults/test_cut_connections.py   seconds of cuts, one each 200 ms (10)
    POLLUX_CHAOS_KILLS=600 pytest tests/faults/test_node_kills.py        kills a store (30)
"""
