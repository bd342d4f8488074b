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

from pollux.testing.conformance.audit import OnRecordContract  # noqa: E402
from pollux.testing.conformance.cancel import CancelContract  # noqa: E402
from pollux.testing.conformance.claim import ClaimContract  # noqa: E402
from pollux.testing.conformance.concurrency import ConcurrencyContract  # noqa: E402
from pollux.testing.conformance.crashes import CrashContract  # noqa: E402
from pollux.testing.conformance.dead import DeadLetterContract  # noqa: E402
from pollux.testing.conformance.edge_values import LimitsContract, OddDataContract  # noqa: E402
from pollux.testing.conformance.enqueue import EnqueueContract  # noqa: E402
from pollux.testing.conformance.firings import FiringContract, OverlapContract  # noqa: E402
from pollux.testing.conformance.hand_back import HandBackContract, TriedContract  # noqa: E402
from pollux.testing.conformance.handle import HandleContract  # noqa: E402
from pollux.testing.conformance.job_moves import MoveJobsContract, PruneVersionContract  # noqa: E402
from pollux.testing.conformance.jobs import DueContract, JobsContract  # noqa: E402
from pollux.testing.conformance.keys import UniqueKeyContract  # noqa: E402
from pollux.testing.conformance.learning import LearntContract  # noqa: E402
from pollux.testing.conformance.listing import ListingContract  # noqa: E402
from pollux.testing.conformance.lost_leases import LostLeaseContract  # noqa: E402
from pollux.testing.conformance.moved_store import MovedStoreContract  # noqa: E402
from pollux.testing.conformance.notes import NoteContract  # noqa: E402
from pollux.testing.conformance.overlap import OverlappingContract, UnlessLiveContract  # noqa: E402
from pollux.testing.conformance.plan import PlanContract  # noqa: E402
from pollux.testing.conformance.prune import PruneContract  # noqa: E402
from pollux.testing.conformance.records import AuditContract, FeedContract, MoveContract  # noqa: E402
from pollux.testing.conformance.renew import ProgressContract, RenewContract  # noqa: E402
from pollux.testing.conformance.settle import SettleContract  # noqa: E402
from pollux.testing.conformance.single_start import AloneContract, EnqueuedRunsContract  # noqa: E402
from pollux.testing.conformance.terms import NodeContract, TermContract  # noqa: E402
from pollux.testing.conformance.unread_ends import UnreadContract  # noqa: E402
from pollux.testing.conformance.versions import PartitionContract  # noqa: E402
from pollux.testing.conformance.waits import WaitContract  # noqa: E402


class StoreContract(
    JobsContract,
    DueContract,
    EnqueueContract,
    ClaimContract,
    RenewContract,
    ProgressContract,
    SettleContract,
    HandBackContract,
    TriedContract,
    DeadLetterContract,
    CrashContract,
    LostLeaseContract,
    UniqueKeyContract,
    CancelContract,
    FiringContract,
    OverlapContract,
    OverlappingContract,
    UnlessLiveContract,
    EnqueuedRunsContract,
    UnreadContract,
    LearntContract,
    AloneContract,
    MovedStoreContract,
    PlanContract,
    TermContract,
    NodeContract,
    NoteContract,
    FeedContract,
    ListingContract,
    PruneContract,
    AuditContract,
    OnRecordContract,
    MoveContract,
    OddDataContract,
    LimitsContract,
    HandleContract,
    WaitContract,
    ConcurrencyContract,
    PartitionContract,
    MoveJobsContract,
    PruneVersionContract,
):
    """All groups in one."""


__all__ = [
    "AloneContract",
    "AuditContract",
    "CancelContract",
    "ClaimContract",
    "ConcurrencyContract",
    "CrashContract",
    "DeadLetterContract",
    "DueContract",
    "EnqueueContract",
    "EnqueuedRunsContract",
    "FeedContract",
    "FiringContract",
    "HandBackContract",
    "HandleContract",
    "JobsContract",
    "LearntContract",
    "LimitsContract",
    "ListingContract",
    "LostLeaseContract",
    "MoveContract",
    "MoveJobsContract",
    "MovedStoreContract",
    "NodeContract",
    "NoteContract",
    "OddDataContract",
    "OnRecordContract",
    "OverlapContract",
    "OverlappingContract",
    "PartitionContract",
    "PlanContract",
    "ProgressContract",
    "PruneContract",
    "PruneVersionContract",
    "RenewContract",
    "SettleContract",
    "StoreContract",
    "TermContract",
    "TriedContract",
    "UniqueKeyContract",
    "UnlessLiveContract",
    "UnreadContract",
    "WaitContract",
]
