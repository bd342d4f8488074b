"""Contract of the stores: the same on every backend.

Storage is dumb: it orders, leases and fences, and checks the conditions that the caller states.  It decides
nothing, logs nothing and reads no configuration.  `pollux.testing.conformance` tests this behaviour; every store
passes it.

What holds for every verb:

* **Atomic.**  A verb applies all its effects on one item or none; `advance` is one write as a whole.  Changes that
  the leader did not make itself enter the feed in the same write (`feed` lists the entries).
* **Durable.**  Once a verb that writes has returned, its effects survive a crash of any Pollux process (and, where
  `capabilities.durable`, a power cut).
* **Repeatable.**  The same call with the same ids and tokens may be sent again after a lost answer: it changes
  nothing more and answers `already` where it would have answered `ok`.
* **Audited.**  The lines of `audit` are written to the audit log in the same write as the change (see `Audit`).  The
  store assigns their numbers, hashes and counts.
* **Moved.**  After `StoreHandle.refuse_if_moved`, a handle refuses every change that people and programs ask for with
  `StoreMoved` while the note `SEAL` exists.  The write itself checks the note.
* **In order.**  Batches answer in the order of their items.
* **Time.**  `now_ms` None means the store's own clock; tests pass their own.
* **Waiting** ends at a wake-up, at the time `look_again_ms`, at `wake`, or after `wait_ms`, whichever is first.
  Wake-ups are hints and may be lost; polling stays correct.
* **No room** (a full disk): `put_jobs`, `enqueue` and `load` are the first to raise `StoreFull`, and write nothing;
  `claim` and `advance` are next; all others work as long as anything can be written, because they record what happened.
* **Unreadable records** (written by another program, or by a newer release): a verb that answers jobs, runs or notes
  raises `Illegible`, which names all of them and has the answer without them; in `feed` such an entry is `Spoilt`.  A
  page names only those before its `next`, so consecutive pages name each one once.
* **A run whose job was deleted** cannot run any more: where it would become ready or held it is cancelled instead
  ("its job was deleted").
* **Versions.**  A handle serves one version (`scheduler_version`).  A job and its live runs are in one version (except
  a run that outlived a deleted job, until a new job of that id is moved).  Each version has its own queues, leases, due
  times, term and feed: `due`, `feed`, `advance`, `claim`, `counts`, `elect` and `resign` see only those of the handle's
  version, and `put_jobs` adds to it.  Verbs that take the id of a job or a run find it in any version, and write to the
  feed of that version.  Ids, keys, notes, nodes, the audit log and finished runs are shared by all versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pollux.model import (
    Advanced,
    Answer,
    AuditLine,
    Counts,
    Job,
    Node,
    Note,
    NotePut,
    Plan,
    QueueDepth,
    Run,
    Term,
    Version,
)
from pollux.model.job import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX
from pollux.store.values import (
    BATCH_MAX,
    FEED_MAX,
    LOSSES_MAX,
    PAGE_MAX,
    READY_MAX,
    Audit,
    Capabilities,
    Claimed,
    DumpPage,
    Feed,
    JobAnswer,
    JobFilter,
    JobPage,
    JobPut,
    LogPage,
    Pruning,
    Renewal,
    Renewed,
    RunAnswer,
    RunFilter,
    RunPage,
    RunsAlike,
    Settlement,
)

__all__ = [
    "BATCH_MAX",
    "FEED_MAX",
    "LOSSES_MAX",
    "PAGE_MAX",
    "PAYLOAD_BYTES_MAX",
    "READY_MAX",
    "RESULT_BYTES_MAX",
    "Advanced",
    "Answer",
    "Audit",
    "Capabilities",
    "Claimed",
    "Counts",
    "DumpPage",
    "Feed",
    "JobAnswer",
    "JobFilter",
    "JobPage",
    "JobPut",
    "Joins",
    "LogPage",
    "Pruning",
    "Renewal",
    "Renewed",
    "RunAnswer",
    "RunFilter",
    "RunPage",
    "RunsAlike",
    "Settlement",
    "Store",
]


class Joins(Protocol):
    """Additional verbs of a store with `capabilities.joins`."""

    async def enqueue_in(
        self, connection: Any, runs: Sequence[Run], *, ready_max: int = READY_MAX, now_ms: int | None = None
    ) -> list[RunAnswer]:
        """As `enqueue`, inside the caller's own transaction: the runs exist if and when it commits.

        A connection to another store is refused with `InvalidInput`, and nothing is written.
        """
        ...

    async def get_runs_in(self, connection: Any, ids: Sequence[str]) -> list[Run | None]:
        """As `get_runs`, inside that transaction: its own writes are visible."""
        ...


class Store(Protocol):
    """One handle on one store.  It belongs to the event loop that opened it; `twin` gives another loop its own."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def scheduler_version(self) -> int:
        """The version that this handle serves."""
        ...

    async def open(self) -> None:
        """Connect, create or migrate.  Refuses a foreign or newer store with `StoreRefused`."""
        ...

    async def close(self) -> None:
        """Release all resources; calls that still wait end.  Closing twice is harmless."""
        ...

    def twin(self) -> Store:
        """A handle on the same store for another thread and its loop; it is opened and closed separately."""
        ...

    def of_version(self, number: int) -> Store:
        """A handle for another version on the same connections: open while this one is open, in the same loop."""
        ...

    def refuse_if_moved(self, url: str | None) -> None:
        """Make changes raise `StoreMoved` once the store is moved.  `url`: without a password; None: no check."""
        ...

    # jobs

    async def put_jobs(
        self, puts: Sequence[JobPut], *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[JobAnswer]:
        """Add or replace definitions.

        * ok: written, its revision one higher (1 for a new job); next due, last due and memory are kept.
        * already: the stored definition is equal; nothing was written, the revision is unchanged.
        * conflict: the job is in another version (it is never taken from there), `revision` is not the stored one,
          another source owns the id (the detail names both), or the stored release is newer than the put one.
        * One `JobsPut` entry for all that were written, with the number of new ones.  A new job has no next due: the
          leader sets it.
        * A new job with the id of a deleted one takes over its leased runs, from any version; it has no waiting runs.
        """
        ...

    async def delete_jobs(
        self, ids: Sequence[str], *, reason: str = "", audit: Audit | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        """Delete jobs: ok, or lost if there is no such job.

        * Their held and ready runs are cancelled in the same write, with one `Ended` entry; a leased run may complete.
          A store may cancel hundreds of them in parts, right after the job was deleted; runs that a crash leaves over
          cannot run any more, and end with the next `prune`, or before a job of the same id is added.
        * One `JobsDeleted` entry.  Finished runs stay until pruned.  A later job of the same id starts one revision
          above the deleted one, with its `last_due_ms` (no due fires twice by delete and add).
        """
        ...

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]: ...

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        """Jobs by id, a page at a time; pages partition the set without gaps or repeats under no writes."""
        ...

    async def move_jobs(
        self, ids: Sequence[str], to: int, *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        """Move jobs to the version `to`: ok; already (the job is in that version); lost (there is no such job).

        * The whole job moves: next due, last due, memory, and its live runs in their states (held, ready, leased).  A
          leased run's token stays valid.  The job's revision rises by one: plans of the old leader for it are stale.
        * One `JobsMoved` entry in the feed of each version they left, one in that of the new one; there also one
          `Arrived` for the held runs, and one `Ended` with the ends that these jobs have not learnt yet (the ends of
          an entry that the job's `memory.learnt` names are learnt).
        """
        ...

    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]:
        """Enabled jobs with a next due below `before_ms`, by (next due, id); only those after the pair `after`."""
        ...

    # plan

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:
        """The oldest entries, in order of id; they stay until an `advance` consumes them.

        Entries: `Ended` (settle, cancel, delete_jobs, and claim for every lease it found lost), `JobsPut`,
        `JobsDeleted`, `JobsMoved`, `Arrived` (enqueue or follow-up of a gated run, RetryAt and Hold of a settle, revive
        of a gated run, move_jobs), `NotesChanged` (put_notes, enqueue, settle; not advance, and not expiry) in all
        versions, `NodeSeen` (beat) in those that the node serves.  `Spoilt` replaces an entry that cannot be read; it
        is consumed like any other.
        """
        ...

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        """Write the whole plan, if `term` is the current term; else answer `fenced` and write nothing.

        * Consumed entries are removed; unknown ids are ignored.  An entry stays if a stale update names it in its
          `memory.learnt`: no end leaves the feed before its job has learnt it.  If a consumed entry was `spoilt`, the
          remaining feed is counted anew: the entry may not have been written by a store.
        * A firing is accepted if the job's revision is the given one (else stale) and `run.due_ms > last_due_ms`
          (equal or less: already).  If `last_due_ms` lies more than 5 s in the store's future (the clock came back)
          it is accepted when no run of that id is live or finished.  Accepted, the job's last due becomes the run's due
          and its next due the firing's.  Overlap: see `Firing`.  A firing whose run id is live or finished is already.
        * An unread firing (see `Firing`) makes the run's due the job's next due and changes nothing else; later firings
          of the job in the same plan are unread, too.  Unread ends are those in entries of this version's feed that
          the plan neither consumes nor has in `read`; in a long feed the newest entries are searched, one by one,
          until `UNREAD_MAX` ends were seen.
        * A release of a held run makes it ready, visible now or at its `visible_ms` if later; of any other run: no
          effect.  Releases with `alone` (see `Release`) are applied last, in their order; a run that may not begin
          stays held, with the reason `PREVIOUS_RUN`, and is named in `waiting`.
        * An `Earlier` brings the visible time of a held or ready run forward, before anything is released.
        * A holding of a held run writes its reason.  A cancel order works as `cancel`, but writes no feed entry
          for waiting runs.
        * An update is applied if the revision is the given one (else stale).
        * Notes as in `put_notes`, without a feed entry; one that conflicts is skipped.
        * Runs of another version are not changed.
        """
        ...

    # runs

    async def enqueue(
        self,
        runs: Sequence[Run],
        *,
        notes: Sequence[NotePut] = (),
        ready_max: int = READY_MAX,
        unless_live: bool = False,
        audit: Audit | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        """Accept runs: ok; already (the id is live or finished, or twice in the batch); conflict (its key is live;
        the detail names the holder); stale (no such job); full (`ready_max` runs wait, ready or held).

        `unless_live`: a run is accepted only if no live run of its job overlaps (see `Run.overlaps_at`), also among
        concurrent calls; else overlapped, and the detail names one that does.

        `RunsAlike` have the effect of a list of the same runs, at a lower cost.  All held (gated) runs of a call give
        one `Arrived` entry.  Notes are written if at least one run was accepted.
        """
        ...

    async def claim(
        self,
        *,
        node: str,
        token: str,
        limit: int,
        lease_ms: int,
        first: int = 1,
        losses_max: int = LOSSES_MAX,
        feed_max: int = FEED_MAX,
        wait_ms: int = 0,
        now_ms: int | None = None,
    ) -> Claimed:
        """Lease up to `limit` ready runs to `node`, with their jobs.

        * Concurrent claims get distinct runs; the answer is empty only if no run is ready.
        * Order: priority `first`, `first`+1, ... 3, then the higher ones 1 ... `first`-1; inside a priority by when the
          run became visible.  Never a run whose `visible_ms` is in the future.
        * Each delivery raises the fence by one, the run's token becomes `<token>:<fence>`, and its progress is empty.
        * A lease that ended counts as ready again: `lease_losses` + 1, and kept in `tried`; at `losses_max` the run is
          dead instead, and one with a cancel request is cancelled; each gives an end in one `Ended` entry (`ran`
          false).  A lease that ends later than now + its own length (the clock was set back) is cut to that length, and
          a run that was visible or was fired before the clock was set back stays visible.
        * The same token again, on the same open handle, answers those of the same runs whose leases are still valid.
        * full (and no run) if more than `feed_max` ends are unread.
        """
        ...

    async def renew(self, renewals: Sequence[Renewal], *, lease_ms: int, now_ms: int | None = None) -> list[Renewed]:
        """Extend leases to now + `lease_ms`; lost (and nothing changes) if the token is not the run's current one.

        A progress that is not empty becomes the run's, cut to `PROGRESS_CHARS_MAX` characters.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        """Record the ends of attempts; the token decides, not the clock.

        * ok: verdict, outcome, follow-ups, notes and feed entry are written.  already: the same token settled it
          before.  lost: the token is not the current one; nothing of this settlement is written.
        * Done, Dead, Cancelled: the live run becomes a finished one, its key is free.
          RetryAt: attempt + 1, ready at that time (gated: held, `Arrived`), and the attempt's error is kept in `tried`
          with its traceback (the latest `TRIED_MAX`, each error of at most `TRIED_CHARS_MAX` characters).  Back: ready
          now, or at its `at_ms` if that is later.  Hold: held with that reason, `Arrived`.  Back and Hold charge
          nothing and keep the outcome fields as they were.
        * An outcome that `crashed` adds one to the run's `crashes`, except with Back or Hold.
        * A cancel request turns RetryAt, Back and Hold into cancelled.
        * Dead with `sole` replaces the job's earlier dead letters of its schedule and adds their number to `deaths`;
          Done with `clears` clears them.  They become history: done and failed, with their error, at the time of their
          end.  Dead letters of runs that were not made by the schedule stay.
        * Follow-ups are accepted as by `enqueue`; one that exists already is skipped.
        * A progress that is not empty becomes the run's, as in `renew`.
        * One `Ended` entry for all that were accepted in the call, in order, and one `Arrived` where needed.
        """
        ...

    async def cancel(
        self,
        *,
        run_ids: Sequence[str] = (),
        job_id: str | None = None,
        reason: str = "",
        audit: Audit | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        """Cancel held and ready runs at once (ok).  A leased run gets a cancel request (ok): its owner is woken and
        reads the request in `renew`; if the lease ends first, the run is cancelled.  lost: the run is not live.
        `job_id`: also all live runs of that job, each once.  One `Ended` entry for the runs that ended; a store may
        cancel hundreds of a job in parts, each with its own entry: then the audit lines are written with the first
        part that changes anything, and count what all parts change, as of that moment.
        """
        ...

    async def revive(
        self, run_ids: Sequence[str], *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[RunAnswer]:
        """Make dead letters run again: ready now (gated: held, `Arrived`), with all counters but the fence at zero;
        `tried` keeps the earlier attempts.

        conflict: its key is live; stale: its job was deleted; lost: the run is not dead.
        """
        ...

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        """Runs, live ones first (by due time, then id), then finished ones (newest first), a page at a time.

        A cursor that is not from an earlier page is refused with `InvalidInput`.
        """
        ...

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        """Runs by id, live or finished."""
        ...

    async def now(self) -> int:
        """The store's own clock.  Delays of runs and expiry times of notes count from it.

        For a server's clock the answer is never ahead of it, and a few milliseconds behind it.
        """
        ...

    async def counts(self, *, all_versions: bool = False) -> Counts:
        """Counts of this version, or of all versions; dead letters are always counted over all versions."""
        ...

    async def lines(self, *, before: str | None = None, now_ms: int | None = None) -> tuple[QueueDepth, ...]:
        """Depths of the queues: runs that can be claimed now, by priority from 1 to 3; runs that are not yet visible do
        not count.

        Exact up to 10,000 a queue; above that the answer is at least one more.

        `before`, the id of a ready run: counts only runs that are claimed ahead of it, of its priority and of higher
        ones, exact up to `AHEAD_MAX`; above that at least one more.  Nothing is ahead of a run that is not ready.
        """
        ...

    async def problems(self) -> tuple[str, ...]:
        """Current problems of the storage: a full disk, a server that evicts keys.

        Each text states the consequence, and after its last `; ` the cure; empty if there are none.
        """
        ...

    async def prune(self, what: Pruning, *, audit: Audit | None = None, now_ms: int | None = None) -> int:
        """Remove finished runs, ended once-jobs and old audit lines as given in `what`; answers how many were removed.
        `audit` is accepted with `ids` or with `version`, and with nothing else (`InvalidInput`).

        Live runs are never touched, except those left over by an interrupted delete or move: they end, or are moved,
        and are counted.
        A once-job ended with its last run; one whose run was cancelled before it began ended when it was due.
        """
        ...

    # notes

    async def put_notes(
        self, puts: Sequence[NotePut], *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        """Write notes by compare-and-set: ok; conflict; already: no revision was given and the stored note is equal
        (nothing is written).  One `NotesChanged` entry for all that were written.
        """
        ...

    async def notes(self, prefix: str = "", *, now_ms: int | None = None) -> list[Note]:
        """Notes whose key begins with `prefix`, by key, without expired ones."""
        ...

    # nodes and terms

    async def beat(self, node: Node, *, ttl_ms: int, now_ms: int | None = None) -> None:
        """Record that a node is alive for `ttl_ms`; 0 removes the node, and its leases stay valid until they end.

        The first beat of a node, and one with other handlers, enters the feed.
        """
        ...

    async def nodes(self, *, now_ms: int | None = None) -> list[Node]:
        """The live nodes, by id."""
        ...

    async def elect(self, node_id: str, *, ttl_ms: int, now_ms: int | None = None) -> Term:
        """Take or renew the leadership; answers the current term.  Term numbers only rise, also after resignations
        and after versions were pruned.
        """
        ...

    async def resign(self, node_id: str, *, term: int, now_ms: int | None = None) -> None:
        """Resign, if `node_id` still holds `term`; the next `elect` wins at once, with a higher number."""
        ...

    # versions

    async def versions(self, *, now_ms: int | None = None) -> list[Version]:
        """The existing versions, by number: a job was put, loaded or moved there, a node beat or was elected there, and
        the version was not pruned since.
        """
        ...

    # wake-ups

    async def wake(self) -> None:
        """End every wait on this store, in every process, now."""
        ...

    # records

    async def log(self, lines: Sequence[AuditLine]) -> None:
        """Append to the audit log; the store assigns `seq` and `chain`."""
        ...

    async def read_log(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        """A page of the audit log, its lines oldest first: the first lines after the number `after`.

        `newest`: the last lines, or the last before the number `after` if that is not 0.
        """
        ...

    async def dump(self, *, after: str | None = None, limit: int = PAGE_MAX) -> DumpPage:
        """All records, a page at a time, in an order that can be loaded; includes the tombstones of deleted jobs."""
        ...

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        """Write dumped records whose id does not exist; leased runs become ready (uncharged), terms only rise.

        New jobs, held runs and notes enter the feed as by `put_jobs`, `enqueue` and `put_notes`.
        Answers how many were new; loading a page twice changes nothing.
        """
        ...
