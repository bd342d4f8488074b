"""World of the planner's tests: a small in-memory store and a leader driven by hand."""

from itertools import count

from msgspec.structs import replace

from pollux.errors import Unreadable
from pollux.model import (
    FINISHED,
    FIRINGS_MAX,
    LIVE,
    NOTES_MAX,
    PREVIOUS_RUN,
    UPDATES_MAX,
    Advanced,
    Answer,
    Arrived,
    Cause,
    End,
    Ended,
    FeedItem,
    Interval,
    Job,
    JobsDeleted,
    JobsPut,
    Node,
    NodeSeen,
    Note,
    NotesChanged,
    Overlap,
    RunState,
    definition,
    run_of,
)
from pollux.plan import Planner

T0 = 1_800_000_000_000
BEHIND = "waits for the previous run"
assert BEHIND == PREVIOUS_RUN


def a_job(id="a", every_ms=60_000, **options):
    options.setdefault("schedule", Interval(every_ms))
    return Job(id=id, handler=options.pop("handler", "h"), **options)


class World:
    """The store: jobs, runs, notes, nodes and the feed; every verb is one atomic step."""

    def __init__(self, now_ms=T0, *, seats=10):
        self.now_ms, self.seats = now_ms, seats
        self.jobs, self.runs, self.notes, self.feed = {}, {}, {}, {}
        self.nodes = {"n": Node(id="n", seats=seats, handlers=("h",))}
        self.gone = {}
        self.ready_extra = 0
        self._ids = count(1)
        self.advances = 0
        self.unread = set()  # jobs with ends that the plan under way has not read
        self.illegible = {}  # jobs that nobody can read, and why

    def enter(self, entry):
        self.feed[next(self._ids)] = entry

    def put(self, *jobs):
        added = 0
        written = []
        for job in jobs:
            old = self.jobs.get(job.id)
            if old is not None and definition(old) == definition(job):
                continue
            if old is None:
                added += 1
                revision, last = self.gone.get(job.id, (0, None))
                self.jobs[job.id] = replace(job, revision=revision + 1, last_due_ms=last)
            else:
                kept = {"next_due_ms": old.next_due_ms, "last_due_ms": old.last_due_ms, "memory": old.memory}
                self.jobs[job.id] = replace(job, revision=old.revision + 1, **kept)
            written.append(job.id)
        if written:
            self.enter(JobsPut(tuple(written), added))

    def delete(self, job_id):
        job = self.jobs.pop(job_id)
        self.gone[job_id] = (job.revision, job.last_due_ms)
        for run in self.live(job_id):
            if run.state is not RunState.LEASED:
                self.end(run.id, RunState.CANCELLED, ran=False)
        self.enter(JobsDeleted((job_id,)))

    def live(self, job_id=None):
        return [run for run in self.runs.values() if run.state in LIVE and job_id in (None, run.job_id)]

    def enqueue(self, job_id, id, cause=Cause.ENQUEUED):
        run = run_of(self.jobs[job_id], self.now_ms, cause, id=id)
        self.runs[id] = run
        if run.state is RunState.HELD:
            self.enter(Arrived((id,)))

    def hold(self, run_id, reason):
        self.runs[run_id] = replace(self.runs[run_id], state=RunState.HELD, held_reason=reason, fence=1)
        self.enter(Arrived((run_id,)))

    def end(self, run_id, state=RunState.DONE, **about):
        self.enter(Ended((self.ended(run_id, state, **about),)))

    def ended(self, run_id, state=RunState.DONE, *, failed=False, ran=True, error=""):
        """End a run; its end is the caller's to tell, with others in one entry."""
        run = self.runs[run_id] = replace(self.runs[run_id], state=state, failed=failed, error=error)
        if ran:
            run = self.runs[run_id] = replace(run, started_ms=self.now_ms)
        return End(run.id, run.job_id, state, run.cause, run.due_ms, self.now_ms, 5, failed, error=error, ran=ran)

    def stop(self, key, *, expires_ms=None, reason="moving"):
        self.notes[key] = Note(key, {"reason": reason, "by": "ada"}, 1, expires_ms)
        self.enter(NotesChanged((key,)))

    def resume(self, key):
        if self.notes.pop(key, None) is not None:
            self.enter(NotesChanged((key,)))

    def beat(self, node):
        self.nodes[node.id] = node
        self.enter(NodeSeen(node.id))

    def standing_notes(self):
        return [n for n in self.notes.values() if n.expires_ms is None or n.expires_ms > self.now_ms]

    def due(self, window):
        after, before_ms, limit = window
        found = sorted(
            (job.next_due_ms, job.id)
            for job in self.jobs.values()
            if job.enabled and job.next_due_ms is not None and job.next_due_ms < before_ms
        )
        return [self.read(job_id) for due_ms, job_id in found if after is None or (due_ms, job_id) > after][:limit]

    def read(self, job_id):
        """A job as a leader gets it."""
        job = self.jobs.get(job_id)
        if job is not None and job_id in self.illegible:
            return Unreadable(job_id, self.illegible[job_id], job.scheduler_version, job.next_due_ms)
        return job

    def page(self, after, limit=7):
        """Of all jobs, few at a time, and where the next page begins."""
        ids = sorted(job_id for job_id in self.jobs if after is None or job_id > after)
        return [self.read(job_id) for job_id in ids[:limit]], ids[limit - 1] if len(ids) > limit else None

    def waiting(self, after, limit=7):
        """Of all held and ready runs, few at a time, and where the next page begins."""
        states = {RunState.HELD, RunState.READY}
        runs = sorted((run for run in self.runs.values() if run.state in states), key=lambda run: run.id)
        page = [run for run in runs if after is None or run.id > after]
        return page[:limit], page[limit - 1].id if len(page) > limit else None

    def advance(self, plan):
        assert len(plan.firings) + len(plan.releases) <= FIRINGS_MAX
        assert len(plan.updates) <= UPDATES_MAX
        assert len(plan.notes) <= NOTES_MAX
        self.advances += 1
        kept = plan.kept([self._judged(update) for update in plan.updates])
        for feed in set(plan.consumed) - kept:
            self.feed.pop(feed, None)
        for put in plan.notes:
            self.notes.pop(put.key, None)
            if put.value is not None:
                self.notes[put.key] = Note(put.key, put.value, 1, put.expires_ms)
        self.unread = {
            end.job_id
            for feed, entry in self.feed.items()
            if feed not in {*plan.read, *plan.consumed} and isinstance(entry, Ended)
            for end in entry.ends
        }
        firings = tuple(self._fire(firing) for firing in plan.firings)
        for each in plan.earlier:
            run = self.runs[each.run_id]
            self.runs[run.id] = replace(run, visible_ms=min(run.visible_ms, each.visible_ms))
        alone = {release.run_id for release in plan.releases if release.alone}
        waiting = tuple(release.run_id for release in plan.releases if not self._release(release, alone))
        for holding in plan.holds:
            run = self.runs.get(holding.run_id)
            if run is not None and run.state is RunState.HELD:
                self.runs[run.id] = replace(run, held_reason=holding.reason)
        for order in plan.cancels:
            ended = replace(self.runs[order.run_id], cancel=order.reason, state=RunState.CANCELLED)
            self.runs[order.run_id] = ended  # the leader is not told what it did itself
        updates = tuple(self._update(update) for update in plan.updates)
        ready = sum(run.state is RunState.READY for run in self.runs.values()) + self.ready_extra
        return Advanced(Answer.OK, self.now_ms, firings, updates, ready=ready, seats=self.seats, waiting=waiting)

    def _release(self, release, alone):
        run = self.runs.get(release.run_id)
        if run is None or run.state is not RunState.HELD:
            return True
        others = [mate for mate in self.live(run.job_id) if mate.id != run.id and not mate.is_behind]
        others = [mate for mate in others if mate.state is not RunState.HELD or mate.id not in alone]
        if release.alone and (others or run.job_id in self.unread):
            self.runs[run.id] = replace(run, held_reason=BEHIND)
            return False
        self.runs[run.id] = replace(run, state=RunState.READY, held_reason="")
        return True

    def _fire(self, firing):
        run = firing.run
        job = self.jobs.get(run.job_id)
        if job is None or job.revision != firing.revision:
            return Answer.STALE
        if run.id in self.runs or (job.last_due_ms is not None and run.due_ms <= job.last_due_ms):
            return Answer.ALREADY
        if firing.overlap is not Overlap.ALLOW and job.id in self.unread and not self.live(job.id):
            self.jobs[job.id] = replace(job, next_due_ms=run.due_ms)
            return Answer.UNREAD
        self.jobs[job.id] = job = replace(job, last_due_ms=run.due_ms, next_due_ms=firing.next_due_ms)
        live = self.live(job.id) if firing.overlap is not Overlap.ALLOW else []
        if live and (firing.overlap is Overlap.SKIP or any(mate.is_behind for mate in live)):
            self.jobs[job.id] = replace(job, memory=firing.if_overlapped)
            return Answer.OVERLAPPED
        if live:
            self.runs[run.id] = replace(run, state=RunState.HELD, held_reason=BEHIND)
            return Answer.WAITS
        self.runs[run.id] = run
        return Answer.OK

    def _judged(self, update):
        job = self.jobs.get(update.job_id)
        return Answer.STALE if job is None or job.revision != update.revision else Answer.OK

    def _update(self, update):
        answer = self._judged(update)
        if answer is Answer.OK:
            job = self.jobs[update.job_id]
            self.jobs[job.id] = replace(job, next_due_ms=update.next_due_ms, memory=update.memory)
        return answer


class Leader:
    """Turns by hand; each turn also asks for the plan twice, because asking must move nothing."""

    def __init__(self, world, **options):
        self.world, self.options = world, options
        self.plans, self.reports, self.late = [], [], []
        self.rebuilds = 0
        self.rebuild()

    def rebuild(self):
        world = self.world
        self.rebuilds += 1
        self.planner = Planner(**self.options)
        held = [run for run in world.runs.values() if run.state is RunState.HELD]
        ready = sum(run.state is RunState.READY for run in world.runs.values()) + world.ready_extra
        self.planner.begin(
            world.now_ms, notes=world.standing_notes(), held=held, nodes=list(world.nodes.values()), ready=ready
        )

    def read(self):
        planner, world = self.planner, self.world
        for feed, entry in sorted(world.feed.items())[:200]:
            planner.apply(FeedItem(feed, entry))
        for number in range(50):
            wants = planner.wants(world.now_ms, scans=number == 0)
            assert wants == planner.wants(world.now_ms, scans=number == 0)
            if not wants:
                return
            planner.learn(
                jobs=[(job_id, world.read(job_id)) for job_id in wants.jobs],
                runs=[(run_id, world.runs.get(run_id)) for run_id in wants.runs],
                timers=None if wants.timers is None else world.due(wants.timers),
                notes=world.standing_notes() if wants.notes else None,
                nodes=list(world.nodes.values()) if wants.nodes else None,
                all_jobs=None if wants.all_jobs is None else world.page(wants.all_jobs or None),
                waiting_runs=None if wants.waiting_runs is None else world.waiting(wants.waiting_runs or None),
            )
        raise AssertionError(f"the planner never stops asking: {wants}")

    def plan(self):
        self.read()
        plan = self.planner.plan(self.world.now_ms)
        assert self.planner.plan(self.world.now_ms) == plan, "asked again, the plan differs"
        return plan

    def turn(self, *, lose_answer=False, between=None):
        """One turn; false if there was nothing to write.  `between` happens after it has read, before it writes."""
        if self.planner.is_outdated(self.world.now_ms):
            self.rebuild()
        plan = self.plan()
        if plan.is_empty():
            return False
        if between is not None:
            between()
        answer = self.world.advance(plan)
        if lose_answer:
            answer = self.world.advance(plan)
        self.plans.append(plan)
        self.late += [(f.run.job_id, f.run.due_ms, self.world.now_ms - f.run.due_ms) for f in plan.firings]
        self.reports.append(self.planner.accept(plan, answer))
        return True

    def run(self, turns_max=500):
        """Turn until nothing is left to do now."""
        for _ in range(turns_max):
            if not self.turn() and not self.planner.left_over:
                return
        raise AssertionError("the leader never comes to rest")

    def go(self, ms, step_ms=None):
        """Let time pass, turning whenever something is due."""
        end = self.world.now_ms + ms
        self.run()
        while self.world.now_ms < end:
            next_ms = self.planner.next_ms()
            assert next_ms is None or next_ms > self.world.now_ms, "it wants another turn although it rests"
            self.world.now_ms = end if next_ms is None else min(end, next_ms)
            self.run()

    def fired(self):
        return [(f.run.job_id, f.run.due_ms) for plan in self.plans for f in plan.firings]

    def skipped(self):
        return [row for report in self.reports for row in report.skipped]


def finished(world):
    return [run for run in world.runs.values() if run.state in FINISHED]
