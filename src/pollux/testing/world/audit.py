"""Safety at every step: the answers of the store, checked against a small model of leases, ends, firings and terms.

It sees what the contract of a store makes public (arguments and answers of its verbs, in the order in which they took
effect), and nothing behind it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pollux.model import Answer, Cancelled, Dead, Done, Overlap, Plan, RetryAt, RunState, Term
from pollux.store.backend import Look
from pollux.store.contract import Claimed, Settlement
from pollux.testing.world.ledger import WorldLedger
from pollux.testing.world.loop import ProcessClock, VirtualProcess, WorldLoop
from pollux.testing.world.trace import WorldTrace

ANSWERED = frozenset({"put_jobs", "cancel", "put_notes", "delete_jobs"})
FINAL = (Done, Dead, Cancelled)


class _Lease(Struct):
    token: str
    fence: int
    until_ms: int
    node: str
    job_id: str


class StoreAuditor:
    """Judge of each effect at the store."""

    def __init__(self, loop: WorldLoop, trace: WorldTrace, ledger: WorldLedger, start_ms: int) -> None:
        self._loop, self._trace, self._ledger = loop, trace, ledger
        self.start_ms = start_ms
        self.clock: ProcessClock | None = None  # the store's
        self._leases: dict[str, _Lease] = {}
        self._fences: dict[str, int] = {}
        self._ends: dict[str, str] = {}  # run -> the token that ended it
        self._fired: set[tuple[str, int]] = set()
        self._lease_ms: dict[str, int] = {}
        self._term = 0
        self.clock_went_back_us = -1  # when the store's clock was last set back
        self.clock_was_wrong = False  # the store's, at any time
        self.revived: set[str] = set()
        self._forgotten: set[str] = set()
        self.failed: dict[str, int] = {}  # run -> attempts that were charged
        self.handed_back: dict[str, int] = {}
        self.ended: dict[str, int] = {}  # job -> attempts that ended a run as done or dead

    def effect(
        self,
        process: VirtualProcess,
        verb: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        value: Any,
        error: BaseException | None,
    ) -> None:
        """A call took effect, or was refused."""
        words = (
            f"{verb} {type(error).__name__}" if error is not None else self._judged(process, verb, args, kwargs, value)
        )
        self._trace.reach(f"verb {words.split(maxsplit=1)[0]}{'' if error is None else f' {type(error).__name__}'}")
        self._trace.add(self._loop.us, process.name, words)

    def _judged(
        self, process: VirtualProcess, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
    ) -> str:
        """What was answered, in a few words."""
        match verb:
            case "claim":
                return self._claimed(process, args, value)
            case "settle":
                return self._settled(args[0], value)
            case "advance":
                return self._advanced(args[0], args[1], value)
            case "elect":
                return self._elected(process, value)
            case "renew":
                self._renewed(args[1], args[2], value)
                return verb
            case "revive":
                self._revived(value)
            case "prune":
                self._forget(args[0].ids)
                return verb
            case "enqueue":
                self._enqueued(args[0], kwargs, value)
            case _ if verb not in ANSWERED:
                self._observed(verb, args, value)
                return verb
        return f"{verb} {' '.join(self._answers(verb, value))}"

    def _answers(self, verb: str, answers: Any) -> list[str]:
        found = [str(getattr(each, "answer", each)) for each in answers]
        for each in found:
            self._trace.reach(f"answer {verb} {each}")
        return found

    def _revived(self, answers: Any) -> None:
        for answer in answers:
            self._ends.pop(answer.id, None)
            self.revived.add(answer.id)

    def _observed(self, verb: str, args: tuple[Any, ...], value: Any) -> None:
        """Verbs whose answers are too many, or say nothing, for the trace."""
        if verb == "renew":
            self._renewed(args[1], args[2], value)
        elif verb == "prune":
            self._forget(args[0].ids)

    def _forget(self, run_ids: tuple[str, ...]) -> None:
        """Dead letters were deleted: the store knows nothing of these runs any more."""
        for run_id in run_ids:
            if run_id in self._ends:
                del self._ends[run_id]
                self._fences.pop(run_id, None)
                self._ledger.executions.pop(run_id, None)
                self._forgotten.add(run_id)

    def _is_forgotten(self, run_id: str) -> bool:
        """Whether its due time may fire again: its run was deleted, and then the store's clock was set back.

        The store accepts a due time of its past again if no run of that id is live or in history (decision 0070).
        """
        return run_id in self._forgotten and self._was_set_back

    def _enqueued(self, runs: Any, kwargs: dict[str, Any], answers: Any) -> None:
        """A run that was to be accepted only if none of its job is live."""
        if not kwargs.get("unless_live"):
            return
        for run, answer in zip(runs, answers, strict=True):
            if answer.answer is Answer.OK and (other := self._leased_of(run.job_id)):
                self._breaks("forced beside a live run", f"run {run.id} was accepted, and {other} of its job runs")

    def _leased_of(self, job_id: str) -> str:
        """A run of the job under a lease that has not ended."""
        now_ms = self.clock.now_ms() if self.clock is not None else 0
        for run_id, lease in self._leases.items():
            if lease.job_id == job_id and lease.until_ms > now_ms and not self._was_set_back:
                return run_id
        return ""

    def _claimed(self, process: VirtualProcess, args: tuple[Any, ...], look: Look[Claimed]) -> str:
        request, claimed = args[0], look.found
        self._trace.reach(f"answer claim {claimed.answer}")
        for run in claimed.runs:
            lease = self._leases.get(run.id)
            if lease is not None and lease.fence == run.fence:
                continue  # the same claim, repeated
            if lease is not None:
                self._trace.reach("transition leased -> leased (claim)")
                if claimed.now_ms < lease.until_ms and not self._was_set_back:
                    left_ms = lease.until_ms - claimed.now_ms
                    self._breaks(
                        "two leases", f"run {run.id} of {lease.node} was claimed by {process.name}, {left_ms} ms early"
                    )
            else:
                self._trace.reach("transition ready -> leased (claim)")
            if run.fence <= self._fences.get(run.id, 0):
                self._breaks("fence", f"run {run.id} was delivered again with fence {run.fence}")
            if run.id in self._ends:
                self._breaks("ran after its end", f"run {run.id} had ended, and was claimed by {process.name}")
            self._fences[run.id] = run.fence
            self._leases[run.id] = _Lease(run.token, run.fence, run.lease_until_ms, process.name, run.job_id)
            self._lease_ms[run.id] = request.lease_ms
        return f"claim {[(run.id, run.fence) for run in claimed.runs]}" if claimed.runs else f"claim {claimed.answer}"

    @property
    def _was_set_back(self) -> bool:
        """Whether the store's clock was set back a short time ago: leases may have been cut to their length."""
        return self.clock_went_back_us >= 0

    def _settled(self, settlements: list[Settlement], answers: list[Answer]) -> str:
        for settlement, answer in zip(settlements, answers, strict=True):
            run_id, verdict = settlement.run_id, settlement.verdict
            self._trace.reach(f"answer settle {answer}")
            if answer is not Answer.OK:
                continue
            lease = self._leases.get(run_id)
            if lease is None or lease.token != settlement.token:
                held = "nothing" if lease is None else lease.node
                self._breaks("stale settle", f"run {run_id} was settled by a token that {held} holds no more")
            self._leases.pop(run_id, None)
            self._trace.reach(f"transition leased -> {type(verdict).__name__} (settle)")
            if isinstance(verdict, Done | Dead) and lease is not None:
                self.ended[lease.job_id] = self.ended.get(lease.job_id, 0) + 1
            if isinstance(verdict, FINAL):
                if run_id in self._ends:
                    self._breaks("two outcomes", f"run {run_id} ended twice")
                self._ends[run_id] = settlement.token
            elif isinstance(verdict, RetryAt):
                self.failed[run_id] = self.failed.get(run_id, 0) + 1
            else:
                self.handed_back[run_id] = self.handed_back.get(run_id, 0) + 1
        ends = [
            (each.run_id, type(each.verdict).__name__, str(a)) for each, a in zip(settlements, answers, strict=True)
        ]
        return f"settle {ends}"

    def _renewed(self, renewals: Any, lease_ms: int, answers: Any) -> None:
        now_ms = self.clock.now_ms() if self.clock is not None else 0
        for renewal, renewed in zip(renewals, answers, strict=True):
            self._trace.reach(f"answer renew {renewed.answer}{' cancel' if renewed.cancel else ''}")
            lease = self._leases.get(renewal.run_id)
            if renewed.answer is Answer.OK:
                if lease is None or lease.token != renewal.token:
                    self._breaks("stale renewal", f"run {renewal.run_id} was renewed by a token that is not current")
                else:
                    lease.until_ms = now_ms + lease_ms

    def _advanced(self, term: int, plan: Plan, advanced: Any) -> str:
        self._trace.reach(f"answer advance {advanced.answer}")
        if advanced.answer is not Answer.OK:
            return f"advance {advanced.answer}"
        if term < self._term and not plan.is_empty():
            self._breaks("stale term", f"a plan of term {term} was written in term {self._term}")
        fired = []
        for firing, answer in zip(plan.firings, advanced.firings, strict=True):
            self._trace.reach(f"answer firing {answer}")
            fired.append((firing.run.id, str(answer)))
            if answer is Answer.OK and firing.overlap is not Overlap.ALLOW and firing.run.state is RunState.READY:
                other = self._leased_of(firing.run.job_id)
                if other:
                    self._breaks("overlap", f"run {firing.run.id} was fired, and {other} of its job runs")
            if answer in (Answer.OK, Answer.WAITS):
                due = firing.run.job_id, firing.run.due_ms
                if due in self._fired and not self._is_forgotten(firing.run.id):
                    self._breaks("fired twice", f"job {due[0]} fired twice for {due[1]}")
                self._fired.add(due)
        for answer in advanced.updates:
            self._trace.reach(f"answer update {answer}")
        moves = len(plan.releases), len(plan.holds), len(plan.cancels), len(plan.updates)
        return f"advance {term} {fired} {moves} {len(plan.consumed)}"

    def _elected(self, process: VirtualProcess, term: Term) -> str:
        if term.number < self._term:
            self._breaks("term", f"term {term.number} came after term {self._term}")
        if term.number > self._term:
            self._term = term.number
            self._trace.reach("a new term")
        return f"elect {term.number}"

    def _breaks(self, kind: str, words: str) -> None:
        self._ledger.breaks(kind, words, self._loop.us)
