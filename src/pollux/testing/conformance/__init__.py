"""Conformance suite that every store passes, ours and yours.

    from pollux.testing.conformance import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def store(self):
            store = StoreHandle(MyBackend(...))
            await store.open()
            yield store
            await store.close()

The store of the fixture is open and empty, and opening it again after closing shows what was stored.  Each group can be
used alone.  It needs pytest and pytest-asyncio (`asyncio_mode = "auto"`).
"""

from pkgutil import iter_modules

import pytest

# Before the tests are imported, so that their plain asserts show values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

# ruff: noqa: E402
# fmt: off
# isort: off
from pollux.testing.conformance.audit import OnRecordContract
from pollux.testing.conformance.claim import ClaimContract, LostLeaseContract, ProgressContract, RenewContract
from pollux.testing.conformance.dead import CrashContract, DeadLetterContract
from pollux.testing.conformance.edge_values import LimitsContract, OddDataContract
from pollux.testing.conformance.enqueue import CancelContract, EnqueueContract, UniqueKeyContract
from pollux.testing.conformance.firings import FiringContract, OverlapContract, OverlappingContract, UnlessLiveContract
from pollux.testing.conformance.job_moves import MoveJobsContract, PruneVersionContract
from pollux.testing.conformance.jobs import DueContract, JobsContract, PruneContract
from pollux.testing.conformance.listing import ListingContract
from pollux.testing.conformance.plan import LearntContract, PlanContract
from pollux.testing.conformance.records import AuditContract, FeedContract, MoveContract, MovedStoreContract
from pollux.testing.conformance.settle import HandBackContract, SettleContract, TriedContract
from pollux.testing.conformance.single_start import AloneContract, EnqueuedRunsContract, UnreadContract
from pollux.testing.conformance.terms import NodeContract, NoteContract, TermContract
from pollux.testing.conformance.versions import PartitionContract
from pollux.testing.conformance.waits import ConcurrencyContract, HandleContract, WaitContract
# isort: on


class StoreContract(
    JobsContract, DueContract, EnqueueContract, ClaimContract, RenewContract, ProgressContract, SettleContract,
    HandBackContract, TriedContract, DeadLetterContract, CrashContract, LostLeaseContract, UniqueKeyContract,
    CancelContract, FiringContract, OverlapContract, OverlappingContract, UnlessLiveContract, EnqueuedRunsContract,
    UnreadContract, LearntContract, AloneContract, MovedStoreContract, PlanContract, TermContract, NodeContract,
    NoteContract, FeedContract, ListingContract, PruneContract, AuditContract, OnRecordContract, MoveContract,
    OddDataContract, LimitsContract, HandleContract, WaitContract, ConcurrencyContract, PartitionContract,
    MoveJobsContract, PruneVersionContract,
):
    """All groups in one."""


__all__ = [
    "AloneContract", "AuditContract", "CancelContract", "ClaimContract", "ConcurrencyContract", "CrashContract",
    "DeadLetterContract", "DueContract", "EnqueueContract", "EnqueuedRunsContract", "FeedContract", "FiringContract",
    "HandBackContract", "HandleContract", "JobsContract", "LearntContract", "LimitsContract", "ListingContract",
    "LostLeaseContract", "MoveContract", "MoveJobsContract", "MovedStoreContract", "NodeContract", "NoteContract",
    "OddDataContract", "OnRecordContract", "OverlapContract", "OverlappingContract", "PartitionContract",
    "PlanContract", "ProgressContract", "PruneContract", "PruneVersionContract", "RenewContract", "SettleContract",
    "StoreContract", "TermContract", "TriedContract", "UniqueKeyContract", "UnlessLiveContract", "UnreadContract",
    "WaitContract",
]
# fmt: on
