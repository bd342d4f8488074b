"""Contract of the stores: the same on every backend.

Storage is dumb: it orders, leases and fences, and checks the conditions that the caller states.  It decides
nothing, logs nothing and reads no configuration.  Behaviour is written down in `pollux.testing.conformance`, and
every store passes it.

What holds for every verb:

* **Atomic.**  A verb's effects on one item are all there or not at all; `advance` is one write as a whole.  What
  the leader did not do itself enters the feed in the same write (`feed` says which entries there are).
* **Durable.**  When a verb that writes has answered, its effects survive a crash of any of our processes (and, where
  `capabilities.durable`, a power cut).
* **Repeatable.**  The same call with the same ids and tokens may be sent again after a lost answer: it changes
  nothing more and answers `already` where it would have answered `ok`.
* **On record.**  The lines of `audit` are written to the audit log with the change, or neither is (see `Audit`).  Their
  numbers, hashes and counts are the store's.
* **Moved.**  A handle that was told to (`StoreHandle.refuse_if_moved`) refuses every change that people and programs
  ask for with `StoreMoved` once the note `SEAL` is there: it is read in the write itself.
* **In order.**  Batches answer in the order of their items.
* **Time.**  `now_ms` None means the store's own clock; tests pass their own.
* **Waiting** ends at the bell, at what `look_again_ms` names, at `wake`, or after `wait_ms`, whichever is first.
  Wake-ups are hints and may be lost; polling stays correct.
* **No room** (a full disk): `put_jobs`, `enqueue` and `load` raise `StoreFull` first, and nothing of them is there;
  then `claim` and `advance`; all others as long as anything can be written, because they record what happened.
* **What cannot be read** (somebody else wrote it, or a newer release): a verb that answers jobs, runs or notes raises
  `Illegible`, which names all of them and has the answer without them; in `feed` such an entry is `Spoilt`.  A page
  names what lies before its `next` and no more, so that page after page names each once.
* **A run whose job is gone** can run no more: where it would become ready or held it is cancelled instead
  ("its job was deleted").
* **Versions.**  A handle serves one (`scheduler_version`).  A job is in one version, and its live runs with it (but for
  one that outlived a deleted job, until the new one in its place is moved); each version has its own
  lines, leases, due times, term and feed: `due`, `feed`, `advance`, `claim`, `counts`, `elect` and `resign` see that of
  the handle alone, and `put_jobs` adds to it.  What names a job or a run by its id finds it
  in whatever version it is, and writes to the feed of that version.  Ids, keys, notes, nodes, the audit log and what
  is finished are over all versions.
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
    """What a store can besides if `capabilities.joins`."""

    async def enqueue_in(
        self, connection: Any, runs: Sequence[Run], *, ready_max: int = READY_MAX, now_ms: int | None = None
    ) -> list[RunAnswer]:
        """As `enqueue`, inside a transaction of the caller's own: the runs are there if and when it commits.

        A connection that does not lead to this store is refused with `InvalidInput`, and nothing is written.
        """
        ...

    async def get_runs_in(self, connection: Any, ids: Sequence[str]) -> list[Run | None]:
        """As `get_runs`, as that transaction sees them: with what it has written itself."""
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
        """Let go of everything; calls still waiting end.  Closing twice is harmless."""
        ...

    def twin(self) -> Store:
        """A handle on the same store for another thread and its loop; to be opened and closed by itself."""
        ...

    def of_version(self, number: int) -> Store:
        """A handle for another version on the same connections: open as long as this one is, in the same loop."""
        ...

    def refuse_if_moved(self, url: str | None) -> None:
        """Whether changes raise `StoreMoved` from now on if the store was moved; `url` names it, without a password."""
        ...

    # jobs

    async def put_jobs(
        self, puts: Sequence[JobPut], *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[JobAnswer]:
        """Add or replace definitions.

        * ok: written, its revision one higher (1 for a new job); next due, last due and memory are kept.
        * already: the stored definition is equal; nothing was written, the revision stands.
        * conflict: the job is in another version (it is never taken from there), `revision` is not the stored one,
          another source owns the id (the detail names both), or the stored release is newer than the put one.
        * One `JobsPut` entry for all that were written, which tells how many were new.  A new job has no next due:
          the leader gives it one.
        * In the place of a deleted job: what of it is leased, in whatever version, comes along; nothing of it waits.
        """
        ...

    async def delete_jobs(
        self, ids: Sequence[str], *, reason: str = "", audit: Audit | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        """Take jobs away: ok, or lost if there is none.

        * Held and ready runs of theirs are cancelled in the same write, with one `Ended` entry; a leased one may end.
          A store may end hundreds of them in parts, right after the job went; what a crash leaves can run no more, and
          ends with the next `prune`, or before a job of the same id is added.
        * One `JobsDeleted` entry.  Finished runs stay until pruned.  A later job of the same id starts at revision 1
          more than the deleted one had, with its `last_due_ms` (no due fires twice by delete and add).
        """
        ...

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]: ...

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        """Jobs by id, a page at a time; pages partition the set without gaps or repeats under no writes."""
        ...

    async def move_jobs(
        self, ids: Sequence[str], to: int, *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        """Take jobs over into the version `to`: ok; already (it is there); lost (there is none).

        * The whole job goes: next due, last due, memory, and its live runs as they stand (held, ready, leased).  A
          leased run's token stays good.  Its revision rises by one: what the old leader still plans of it is stale.
        * One `JobsMoved` entry in the feed of each version they left, one in that of the new one; there also one
          `Arrived` for the held runs, and one `Ended` with the ends of these jobs that they have not learnt yet (what
          is in an entry that the job's `memory.learnt` names, they have).
        """
        ...

    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]:
        """Enabled jobs with a next due below `before_ms`, by (next due, id), those after that pair."""
        ...

    # plan

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:
        """The oldest entries, in order of id; they stay until an `advance` consumes them.

        Entries: `Ended` (settle, cancel, delete_jobs, and claim for every lease it found lost), `JobsPut`,
        `JobsDeleted`, `JobsMoved`, `Arrived` (enqueue or follow-up of a gated run, RetryAt and Hold of a settle, revive
        of a gated run, move_jobs), `NotesChanged` (put_notes, enqueue, settle; not advance, and not expiry) in all
        versions, `NodeSeen` (beat) in those that the node serves.  `Spoilt` stands for one that cannot be read; it is
        consumed like any other.
        """
        ...

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        """Write a plan whole, if `term` is the current term; else `fenced` and nothing.

        * Consumed entries vanish; unknown ids are ignored.  One stays if an update is stale whose `memory.learnt` names
          it: no end leaves the feed before its job has learnt it.  If one of them was `spoilt`, what is left of the
          feed is counted anew: somebody may have put it there by hand.
        * A firing is accepted if the job's revision is the given one (else stale) and `run.due_ms > last_due_ms`
          (equal or less: already).  If `last_due_ms` lies more than 5 s in the store's future (the clock came back)
          it is accepted when no run of that id is live or finished.  Accepted, the job's last due becomes the run's due
          and its next due the firing's.  Overlap: see `Firing`.  A firing whose run id is live or finished is already.
        * An unread firing (see `Firing`) makes the run's due the job's next due and changes nothing else; later firings
          of the job in the same plan are unread, too.  Unread are the ends in entries of this version's feed that the
          plan neither consumes nor has `read`; of a long feed the latest are looked at, entry by entry until
          `UNREAD_MAX` ends were seen.
        * A release of a held run makes it ready, visible now or at its `visible_ms` if later; of any other: nothing.
          Those that are to begin alone (see `Release`) come last, in their order; one that is not alone stays held,
          with the reason `PREVIOUS_RUN`, and is named in `waiting`.
        * An `Earlier` brings the visible time of a held or ready run forward, before anything is released.
        * A holding of a held run writes its reason.  A cancel order works as `cancel`, but enters no feed entry
          for runs that were waiting.
        * An update is applied if the revision is the given one (else stale).
        * Notes as `put_notes`, without a feed entry; one that conflicts is left out.
        * Runs that are in another version are left alone.
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

        `unless_live`: only where no run of its job overlaps (see `Run.overlaps_at`), and one of them at a time, however
        many call at once; else overlapped, and the detail names one that does.

        `RunsAlike` are taken as a list of the same runs is, and cheaper.  A held (gated) run gives one `Arrived` entry
        for all.  Notes are written if at least one run was accepted.
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

        * Distinct among any number of claimers; none only if there is none.
        * Order: priority `first`, `first`+1, ... 3, then the higher ones 1 ... `first`-1; inside a priority by when the
          run became visible.  Never a run whose `visible_ms` lies ahead.
        * Each delivery raises the fence by one, the run's token becomes `<token>:<fence>`, and its progress is empty.
        * A lease that ended counts as ready again: `lease_losses` + 1, and kept in `tried`; at `losses_max` the run is
          dead instead, and one with a cancel request is cancelled; each gives an end in one `Ended` entry (`ran`
          false).  A lease that ends later than now + its own length (the clock came back) is cut to that length, and a
          run that was visible before the clock came back (or was fired: that is due by its maker's word) stays so.
        * The same token again, on a handle that is still open, gives the same runs as far as their leases still stand.
        * full (and no run) if more than `feed_max` ends are unread.
        """
        ...

    async def renew(self, renewals: Sequence[Renewal], *, lease_ms: int, now_ms: int | None = None) -> list[Renewed]:
        """Extend leases to now + `lease_ms`; lost (and nothing changes) if the token is not the run's current one.

        A progress that is not empty becomes the run's; of a longer one the first `PROGRESS_CHARS_MAX` characters.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        """Record the ends of attempts; the token decides, not the clock.

        * ok: verdict, outcome, follow-ups, notes and feed entry are there.  already: the same token settled it before.
          lost: the token is not the current one; nothing of this settlement is there.
        * Done, Dead, Cancelled: the run leaves the live runs and becomes a finished one, its key is free.
          RetryAt: attempt + 1, ready at that time (gated: held, `Arrived`), and the attempt's error is kept in `tried`
          with its traceback (the latest `TRIED_MAX`, each error of at most `TRIED_CHARS_MAX` characters).  Back: ready
          now, or at its `at_ms` if that is later.  Hold: held with that reason, `Arrived`.  Back and Hold charge
          nothing and keep the outcome fields as they were.
        * An outcome that `crashed` adds one to the run's `crashes`, unless the run goes back by Back or Hold.
        * A cancel request turns RetryAt, Back and Hold into cancelled.
        * Dead with `sole` takes the place of the job's earlier dead letters of its schedule and counts on in `deaths`;
          Done with `clears` clears them.  They are history from then on: done and failed, with their error, where they
          ended.  Those of runs that somebody asked for stay.
        * Follow-ups are accepted as by `enqueue`, silently where they are there already.
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
        """Held and ready runs are cancelled at once (ok).  For a leased one a request is left beside the lease (ok):
        the owner is rung and reads it in `renew`; if the lease ends first, the run is cancelled.  lost: not live.
        `job_id`: all its live runs, too, each once.  One `Ended` entry for those that ended; a store may take hundreds
        of a job in parts, each with its own entry: then the first that does anything has the lines, and counts all
        that are live in that moment.
        """
        ...

    async def revive(
        self, run_ids: Sequence[str], *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[RunAnswer]:
        """Dead letters run again: ready now (gated: held, `Arrived`), all counters but the fence at zero; what was
        tried before stays on record.

        conflict: its key is live; stale: its job is gone; lost: it is not dead.
        """
        ...

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        """Runs, live ones first (by due time, then id), then finished ones (newest first), a page at a time.

        A cursor that no page answered is refused with `InvalidInput`.
        """
        ...

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        """Runs by id, live or finished."""
        ...

    async def now(self) -> int:
        """The store's own clock.  Whoever has a run come after a delay, or a note end, counts from it.

        Where it is a server's: never ahead of it, and behind it by a few milliseconds.
        """
        ...

    async def counts(self, *, all_versions: bool = False) -> Counts:
        """Of this version, or over all that there are; dead letters are counted over all."""
        ...

    async def lines(self, *, before: str | None = None, now_ms: int | None = None) -> tuple[QueueDepth, ...]:
        """What could be claimed now, by priority from 1 to 3; what waits for its time does not count.

        Exact to 10,000 of a line; beyond it at least one more.

        `before`, the id of a ready run: only what is claimed ahead of it counts, of its priority and of higher ones,
        exact to `AHEAD_MAX`; beyond it at least one more.  Nothing is ahead of a run that is not ready.
        """
        ...

    async def problems(self) -> tuple[str, ...]:
        """What is wrong with the place of the store now: a full disk, a server that forgets keys.

        Each says what follows, and after its last `; ` the cure; none if all is well.
        """
        ...

    async def prune(self, what: Pruning, *, audit: Audit | None = None, now_ms: int | None = None) -> int:
        """Remove finished runs, ended once-jobs and old audit lines as told; answers how many went.
        `audit` goes with `ids` or with `version`, and with nothing else (`InvalidInput`).

        Live runs are never touched, but for those that a delete or a move which was cut off has left: they end, or
        come along, and count.
        A once-job ended with its last run; one whose run was cancelled before it began ended when it was due.
        """
        ...

    # notes

    async def put_notes(
        self, puts: Sequence[NotePut], *, audit: Audit | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        """Write notes by compare-and-set: ok; conflict; already (over whatever is there, and the same is there), and
        then nothing is written.  One `NotesChanged` entry for all that were written.
        """
        ...

    async def notes(self, prefix: str = "", *, now_ms: int | None = None) -> list[Note]:
        """Notes whose key begins so, by key; expired ones are not there."""
        ...

    # nodes and terms

    async def beat(self, node: Node, *, ttl_ms: int, now_ms: int | None = None) -> None:
        """Record that a node lives, for `ttl_ms`; with 0 it leaves, and its leases stand until they end.

        The first beat, and one with other handlers, enters the feed.
        """
        ...

    async def nodes(self, *, now_ms: int | None = None) -> list[Node]:
        """The living, by id."""
        ...

    async def elect(self, node_id: str, *, ttl_ms: int, now_ms: int | None = None) -> Term:
        """Take or renew the leadership; answers the term that stands.  Terms only rise, also over resignations
        and versions that were pruned.
        """
        ...

    async def resign(self, node_id: str, *, term: int, now_ms: int | None = None) -> None:
        """Give the term up, if it is still ours; the next `elect` wins at once, with a higher number."""
        ...

    # versions

    async def versions(self, *, now_ms: int | None = None) -> list[Version]:
        """Those that are there, by number: a job was put, loaded or moved there, a node beat or was elected there, and
        it was not pruned since.
        """
        ...

    # wake-ups

    async def wake(self) -> None:
        """Ring the bell: every wait on this store, in every process, ends now."""
        ...

    # records

    async def log(self, lines: Sequence[AuditLine]) -> None:
        """Append to the audit log; `seq` and `chain` are given by the store."""
        ...

    async def read_log(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        """A page of the audit log, its lines oldest first: those after a number, from the oldest on.

        `newest`: from the other end, the last lines, or the last before the number `after` if that is not 0.
        """
        ...

    async def dump(self, *, after: str | None = None, limit: int = PAGE_MAX) -> DumpPage:
        """Everything, a page at a time, in an order that can be loaded; also what is remembered of deleted jobs."""
        ...

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        """Write dumped records where there are none of the same id; leases are void (ready, uncharged), terms rise.

        The leader is told of new jobs, held runs and notes as by `put_jobs`, `enqueue` and `put_notes`.
        Answers how many were new; loading a page twice changes nothing.
        """
        ...
