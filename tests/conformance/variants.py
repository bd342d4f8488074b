"""Part of the contract for a store kind behind another driver, server or topology.

The whole contract is kept once for each kind of store (`test_redis.py`, `test_postgres.py`).  Another release of the
server, a pooler or a cluster can break a verb, a wait or a race; these groups use every verb, wait and compete.  Rules
of one verb among many (audit lines, moved stores, versions, edge values) are the same statements once more.
"""

from pollux.testing.conformance import (
    CancelContract,
    ClaimContract,
    ConcurrencyContract,
    EnqueueContract,
    FeedContract,
    FiringContract,
    HandleContract,
    JobsContract,
    ListingContract,
    LostLeaseContract,
    MoveContract,
    PlanContract,
    PruneContract,
    PruneVersionContract,
    SettleContract,
    TermContract,
    UniqueKeyContract,
    WaitContract,
)


class VariantContract(
    JobsContract,
    EnqueueContract,
    ClaimContract,
    SettleContract,
    LostLeaseContract,
    UniqueKeyContract,
    CancelContract,
    FiringContract,
    PlanContract,
    TermContract,
    FeedContract,
    ListingContract,
    PruneContract,
    PruneVersionContract,
    MoveContract,
    HandleContract,
    WaitContract,
    ConcurrencyContract,
):
    """Every verb, every wait, every race."""
