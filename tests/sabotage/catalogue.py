"""Catalogue of sabotage: one promise at a time; where stores keep it in code of their own, each is broken.

Here are the memory store, SQLite and the runtime; the stores that are servers are in `on_servers.py`, what comes in
and goes out over the network in `at_the_door.py`, records that cannot be read in `beside_spoilt.py`, the versions of
one store in `between_versions.py`.

What is broken in a store bears the store's name behind its own (`S4.two-redis`, `S1.redis-plain`), and there is one for
each store; `test_fits.py` knows where there is none, and why.

The tests named are those that should notice first; a sabotage is caught by the first of them that goes red.

S6 is about order: what is *done with* must never be recorded before what *follows from it*.  We have no cursor; the two
places where that could happen are the leader's memory (a job moves on although the store refused its firing) and
the feed (an entry is consumed by a plan that does not carry all its effects).
"""

from __future__ import annotations

from tests.sabotage.api_and_polls import INWARDS, OUTWARDS
from tests.sabotage.copy import Patch, Sabotage
from tests.sabotage.server_stores import ALONG, BESIDE, ENDED_UNREAD, KEPT, ON_POSTGRES, ON_REDIS
from tests.sabotage.sources import ONE_NAME
from tests.sabotage.unreadable_job import UNREADABLE_JOB
from tests.sabotage.unreadable_records import BESIDE_SPOILT
from tests.sabotage.versions import BETWEEN_VERSIONS

MEMORY = "tests/conformance/test_memory.py::TestMemoryStore::"
SQLITE = "tests/conformance/test_sqlite.py::TestSqliteStore::"
CREW = "tests/runtime/test_node.py::"
CANNOT_PLAN = "tests/runtime/test_leader_without_plans.py::"
RENEWER = "tests/runtime/test_renewer.py::"
PLANNER = "tests/unit/test_plan_planner.py::"
PROMISES = "tests/unit/test_plan_promises.py::"
BACK = "tests/unit/test_plan_clock.py::"
UNREAD = "tests/runtime/test_unread_ends.py::"
ALONE = "tests/unit/test_plan_single_start.py::"
ENDS_ONCE = "tests/unit/test_plan_ends_once.py::"
DRAIN = "tests/chaos/test_drain_signals.py::"
CLOCK = "tests/chaos/test_clock.py::"
SWEEP = (
    "tests/chaos/test_failpoints.py::test_a_crash_at_any_failpoint_and_the_same_call_again_is_as_if_nothing_happened"
)
SET_RIGHT = "tests/runtime/test_clock_correction.py::"
RIGHT_AFTER = "test_the_due_time_right_after_fires_on_time_where_a_catch_up_run_would_still_be_live"
JUMP = CLOCK + "test_a_jump_of_the_wall_clock_loses_nothing_doubles_nothing_and_steals_no_living_lease[{}-+1h]"


def sabotage(name: str, broken: str, *patches: Patch, tests: tuple[str, ...]) -> Sabotage:
    return Sabotage(name, broken, patches, tests)


TOKENS = (
    sabotage(
        "S1.memory",
        "settle ends a run whatever token it is shown",
        Patch(
            "store/memory/settle.py",
            "run.token != settlement.token:",
            "(run.token != settlement.token and isinstance(settlement.verdict, RetryAt | Back | Hold)):",
        ),
        tests=(MEMORY + "test_a_late_settlement_is_refused_once_somebody_else_has_the_run",),
    ),
    sabotage(
        "S1.sqlite",
        "settle ends a run whatever token it is shown",
        Patch(
            "store/sqlite/settle.py",
            "row[2] != settlement.token:",
            "(row[2] != settlement.token and not isinstance(settlement.verdict, _FINAL)):",
        ),
        tests=(SQLITE + "test_a_late_settlement_is_refused_once_somebody_else_has_the_run",),
    ),
    sabotage(
        "S2.memory",
        "renew extends a lease whatever token it is shown",
        Patch("store/memory/leases.py", " or run.token != renewal.token:", ":"),
        tests=(MEMORY + "test_the_token_of_an_earlier_delivery_renews_nothing",),
    ),
    sabotage(
        "S2.sqlite",
        "renew extends a lease whatever token it is shown",
        Patch("store/sqlite/claim.py", " or row[2] != renewal.token:", ":"),
        tests=(SQLITE + "test_the_token_of_an_earlier_delivery_renews_nothing",),
    ),
    sabotage(
        "S3.memory",
        "a run is handed back (back, hold, retry) whatever token is shown",
        Patch(
            "store/memory/settle.py",
            "run.token != settlement.token:",
            "(run.token != settlement.token and not isinstance(settlement.verdict, RetryAt | Back | Hold)):",
        ),
        tests=(MEMORY + "test_a_late_hand_back_is_refused_once_somebody_else_has_the_run",),
    ),
    sabotage(
        "S3.sqlite",
        "a run is handed back (back, hold, retry) whatever token is shown",
        Patch(
            "store/sqlite/settle.py",
            "row[2] != settlement.token:",
            "(row[2] != settlement.token and isinstance(settlement.verdict, _FINAL)):",
        ),
        tests=(SQLITE + "test_a_late_hand_back_is_refused_once_somebody_else_has_the_run",),
    ),
    sabotage(
        "S9.memory",
        "every delivery has the same token",
        Patch("store/memory/leases.py", 'token=f"{asking.token}:{fence}",', 'token="t",'),
        tests=(MEMORY + "test_a_late_settlement_is_refused_once_somebody_else_has_the_run",),
    ),
    sabotage(
        "S9.sqlite",
        "every delivery has the same token",
        Patch("store/sqlite/queries/claim.sql", "token = ? || ':' || (fence + 1)", "token = substr(?, 1, 0) || 't'"),
        Patch("store/relational/rows.py", 'f"{token}:1"', '"t"'),
        tests=(SQLITE + "test_a_late_settlement_is_refused_once_somebody_else_has_the_run",),
    ),
    sabotage(
        "S9.node",
        "a node uses one token for all its claims",
        Patch(
            "runtime/dispatcher.py",
            'self._token = f"{new_id(self.worker.time.now_ms(), self.worker.dice)}.{self._token_suffix}"',
            "self._token = self._token_suffix",
        ),
        tests=("tests/runtime/test_dispatcher.py::test_every_claim_has_its_own_token",),
    ),
)

LEASES = (
    sabotage(
        "S10",
        "a lease is renewed only when it is over",
        Patch(
            "runtime/renewer.py",
            "attempt.renew_at = sent + self.lease_ms / 3",
            "attempt.renew_at = sent + self.lease_ms",
        ),
        tests=(
            RENEWER + "test_all_leases_are_renewed_in_one_batch_at_a_third_of_their_length",
            CREW + "test_leases_are_renewed_during_the_grace",
        ),
    ),
    sabotage(
        "S11.memory",
        "leases are taken back although they have not ended",
        Patch("store/memory/leases.py", "if now_ms < state.first_end_ms or not can_reclaim:", "if not can_reclaim:"),
        Patch("store/memory/leases.py", " if run.lease_until_ms <= now_ms]\n    for", "]\n    for"),
        tests=(MEMORY + "test_a_lease_that_still_runs_is_left_alone",),
    ),
    sabotage(
        "S11.sqlite",
        "leases are taken back although they have not ended",
        Patch("store/sqlite/queries/claim.sql", "r.lease_until_ms <= ? ORDER BY", "? > 0 ORDER BY"),
        tests=(SQLITE + "test_a_lease_that_still_runs_is_left_alone",),
    ),
    sabotage(
        "S13.leader",
        "trust in a term is measured by the wall clock",
        Patch(
            "runtime/leader.py",
            "self._term is not None and self.clock.mono_ms() < self._trust_until",
            "self._term is not None and self.clock.now_ms() < self._trust_until",
        ),
        Patch(
            "runtime/leader.py",
            "sent = self.asked_at = self.clock.mono_ms()",
            "sent = self.asked_at = self.clock.now_ms()",
        ),
        tests=("tests/runtime/test_leader.py::test_trust_does_not_move_with_the_wall_clock",),
    ),
    sabotage(
        "leader.aside",
        "a leader that cannot plan keeps the term from one that can",
        Patch(
            "runtime/timekeeper.py",
            "            await self._resign_if_failing(error)\n",
            "            self._failing_since = None\n",
        ),
        tests=(CANNOT_PLAN + "test_another_one_leads_after_two_terms_and_what_is_due_fires",),
    ),
    sabotage(
        "leader.asked",
        "who stepped aside is brought back by a question that was under way",
        Patch("runtime/leader.py", "if self.has_resigned or self._barred_ms() > 0:", "if self.has_resigned:"),
        tests=(CANNOT_PLAN + "test_a_question_that_was_under_way_when_it_stepped_aside_wins_it_nothing",),
    ),
    sabotage(
        "late-bell",
        "where bells are heard late a standby rests as if it were rung in time",
        Patch("runtime/dispatcher.py", "not wait_ms or not self.is_signalled", "not wait_ms"),
        tests=(
            CREW + "test_where_a_bell_is_heard_late_a_term_that_is_given_away_is_taken_within_a_second_all_the_same",
        ),
    ),
    sabotage(
        "S13.renewer",
        "trust in a lease is measured by the wall clock",
        Patch("runtime/renewer.py", "        sent = self.clock.mono_ms()", "        sent = self.clock.now_ms()"),
        tests=(RENEWER + "test_all_leases_are_renewed_in_one_batch_at_a_third_of_their_length",),
    ),
    sabotage(
        "S14",
        "those who failed together come again together: retries have no jitter",
        Patch("outcome/verdict.py", "(1.0 + retry.jitter * (2.0 * roll - 1.0))", "(1.0 + 0.0 * roll)"),
        tests=("tests/unit/test_outcome_retry.py::test_jitter_spreads_a_delay_evenly_to_both_sides",),
    ),
    sabotage(
        "S14.node",
        "a node throws the same number for every retry",
        Patch("runtime/attempt.py", "roll=worker.dice.random()", "roll=0.5"),
        tests=("tests/runtime/test_attempt.py::test_runs_that_fail_together_do_not_come_again_together",),
    ),
    sabotage(
        "S15.memory",
        "a run handed back by a node that leaves is charged with a failure",
        Patch(
            "store/memory/settle.py",
            "replace(free, state=READY, visible_ms=max(now_ms, verdict.at_ms))",
            "replace(free, state=READY, visible_ms=max(now_ms, verdict.at_ms), attempt=run.attempt + 1)",
        ),
        tests=(MEMORY + "test_a_run_handed_back_is_ready_at_once_and_not_charged",),
    ),
    sabotage(
        "S15.sqlite",
        "a run handed back by a node that leaves is charged with a failure",
        Patch(
            "store/sqlite/queries/settle.sql",
            "SET state = ?, held_reason = ?, visible_ms = ?, settled = ?, owner",
            "SET attempt = attempt + 1, state = ?, held_reason = ?, visible_ms = ?, settled = ?, owner",
        ),
        tests=(DRAIN + "test_a_handler_longer_than_the_grace_is_handed_back_uncharged",),
    ),
    sabotage(
        "leap.memory",
        "the clock leaps ahead, and every lease is over at once",
        Patch(
            "store/memory/store.py",
            "self._jumps.hold_ms(request.lease_ms) if now_ms is None else 0",
            "self._jumps.hold_ms(request.lease_ms) if now_ms == 0 else 0",
        ),
        tests=(JUMP.format("memory"),),
    ),
    sabotage(
        "leap.sqlite",
        "the clock leaps ahead, and every lease is over at once",
        Patch(
            "store/sqlite/store.py",
            "self.database.jumps.hold_ms(request.lease_ms) if now_ms is None else 0",
            "self.database.jumps.hold_ms(request.lease_ms) if now_ms == 0 else 0",
        ),
        tests=(JUMP.format("sqlite"),),
    ),
)

FIRINGS = (
    sabotage(
        "S4.memory",
        "a plan of an old term is written",
        Patch("store/memory/plan.py", "if not is_current(state, term):", "if term < 0:"),
        tests=(MEMORY + "test_an_old_term_writes_nothing",),
    ),
    sabotage(
        "S4.sqlite",
        "a plan of an old term is written",
        Patch("store/sqlite/plan.py", "if not await is_current(tx, term):", "if term < 0:"),
        tests=(SQLITE + "test_an_old_term_writes_nothing",),
    ),
    sabotage(
        "S4.two-memory",
        "a term is given to whoever asks, though another holds it",
        Patch("store/memory/nodes.py", "if is_vacant or current.holder == node_id:", "if is_vacant or node_id:"),
        tests=(MEMORY + "test_the_second_to_ask_is_told_who_leads",),
    ),
    sabotage(
        "S4.two-sqlite",
        "a term is given to whoever asks, though another holds it",
        Patch("store/relational/nodes.py", "if is_vacant or holder == node_id:", "if is_vacant or node_id:"),
        tests=(SQLITE + "test_the_second_to_ask_is_told_who_leads",),
    ),
    sabotage(
        "S5.memory",
        "a due fires again: neither the last due nor the run's id is asked",
        Patch("store/memory/plan.py", "if _is_fired(state, row.last_due_ms, run, now_ms):", "if run.id in state.live:"),
        tests=(MEMORY + "test_the_same_due_fires_once", MEMORY + "test_an_earlier_due_does_not_fire_after_a_later_one"),
    ),
    sabotage(
        "S5.sqlite",
        "a due fires again: neither the last due nor the run's id is asked",
        Patch(
            "store/relational/plan.py",
            "if run.id in self._known or facts.is_fired(run.due_ms, self._now_ms):",
            "if run.id in self._known and facts.last_due_ms is None:",
        ),
        tests=(SQLITE + "test_an_earlier_due_does_not_fire_after_a_later_one", SQLITE + "test_the_same_due_fires_once"),
    ),
    sabotage(
        "S6.moves",
        "the leader moves a job on although its firing was refused",
        Patch(
            "plan/plan_builder.py",
            "            unread_late += _not_fired(term, planned.slot.job.id, answer)\n        else:",
            "            unread_late += _not_fired(term, planned.slot.job.id, answer)\n        if planned:",
        ),
        tests=(
            PLANNER + "test_a_job_that_was_edited_behind_the_plan_is_read_again_and_fires_once",
            PROMISES + "test_every_due_time_that_is_over_was_fired_once_or_counted_once",
        ),
    ),
    sabotage(
        "S6.feed",
        "feed entries are consumed before all that follows from them is written",
        Patch("plan/term_state.py", "if owed == paying[feed]", "if owed >= paying[feed]"),
        tests=(
            PLANNER + "test_a_leader_that_dies_in_the_middle_of_an_entry_leaves_the_rest_to_the_next",
            "tests/unit/test_plan_feed.py::test_an_end_is_not_consumed_before_the_run_behind_it_is_released",
        ),
    ),
    sabotage(
        "S6.learns",
        "a job fires before it has learnt how its last run ended",
        Patch(
            "plan/plan_builder.py", "    if _learns_first(term, slot):", "    if _learns_first(term, slot) and False:"
        ),
        tests=(UNREAD + "test_a_run_is_not_made_before_what_was_read_of_the_one_before_is_written",),
    ),
    sabotage(
        "S6.once",
        "a leader learns what the one before it has learnt of an entry",
        Patch("plan/planner.py", "        elif mark in slot.memory.learnt:", "        elif False:"),
        Patch("plan/planner.py", "    inbox.skip_learnt(work, slot.memory)\n", ""),
        tests=(
            ENDS_ONCE + "test_each_end_is_learnt_once_whichever_plan_was_the_leaders_last",
            "tests/chaos/test_kills.py::test_leaders_that_die_over_an_entry_of_many_ends_teach_each_job_once",
        ),
    ),
    sabotage(
        "S6.lost",
        "what a stale job was to learn of an entry is taken for learnt",
        Patch("plan/plan_builder.py", "        _add_refs_again(inbox, inbox.work_of(job_id), change.feeds)\n", ""),
        tests=(ENDS_ONCE + "test_each_end_is_learnt_once_though_its_job_is_put_between_reading_and_writing",),
    ),
    sabotage(
        "S6.kept-memory",
        "an entry goes although a job that was to learn from it is stale",
        Patch("store/memory/plan.py", "        if entry_id not in kept:", "        if True:"),
        tests=(MEMORY + KEPT + "[alone]",),
    ),
    sabotage(
        "S6.kept-sqlite",
        "an entry goes although a job that was to learn from it is stale",
        Patch("store/sqlite/plan.py", "_consume(tx, plan, plan.kept(updates))", "_consume(tx, plan, frozenset())"),
        tests=(SQLITE + KEPT + "[alone]",),
    ),
    sabotage(
        "S6.along-memory",
        "ends that a job has learnt go along with it into another version",
        Patch("store/memory/jobs.py", " if mark not in learnt.get(end.job_id, (mark,))]", " if end.job_id in learnt]"),
        tests=(MEMORY + ALONG,),
    ),
    sabotage(
        "S6.along-sqlite",
        "ends that a job has learnt go along with it into another version",
        Patch(
            "store/relational/feed_entries.py",
            " if mark not in learnt.get(end.job_id, (mark,))]",
            " if end.job_id in learnt]",
        ),
        tests=(SQLITE + ALONG,),
    ),
    sabotage(
        "S6.unread-memory",
        "an end that came after the feed was read is not looked for",
        Patch("store/memory/plan.py", "    asked = _asking(state, plan) if state.ends else ()", "    asked = ()"),
        tests=(UNREAD + "test_a_run_is_not_made_before_the_end_of_the_one_before_was_read", MEMORY + ENDED_UNREAD),
    ),
    sabotage(
        "S6.unread-sqlite",
        "an end that came after the feed was read is not looked for",
        Patch(
            "store/sqlite/plan.py", "    if tx.counters.ends and jobs_that_look(firings, facts):", "    if not facts:"
        ),
        tests=(SQLITE + ENDED_UNREAD,),
    ),
    sabotage(
        "S6.alone",
        "a firing that waited begins at the next end, whoever else is live",
        Patch("plan/gate.py", "return run.cause is Cause.SCHEDULE and not is_begun and", "return not run and"),
        tests=(
            ALONE + "test_the_end_of_a_run_that_was_asked_for_lets_nobody_begin_beside_the_first",
            PROMISES + "test_every_due_time_that_is_over_was_fired_once_or_counted_once",
        ),
    ),
    sabotage(
        "S6.alone-memory",
        "a run that is to begin alone begins beside others",
        Patch("store/memory/plan.py", "any(not mate.is_behind for mate in mates)", "any(False for mate in mates)"),
        tests=(MEMORY + BESIDE,),
    ),
    sabotage(
        "S6.alone-sqlite",
        "a run that is to begin alone begins beside others",
        Patch("store/relational/plan.py", "        if run.job_id in barred:", "        if False:"),
        tests=(SQLITE + BESIDE,),
    ),
    sabotage(
        "back",
        "the clock comes back by an hour, and recurring jobs wait until that hour is over",
        Patch("plan/term_state.py", "if now_ms < self.seen_ms - CAME_BACK_MS:", "if now_ms < 0:"),
        tests=(BACK + "test_after_a_wrong_hour_a_recurring_job_goes_on_where_the_clock_is_and_no_due_fires_twice",),
    ),
    sabotage(
        "set-right",
        "the clock was a day ahead and is set right, and the next leader finds nothing amiss",
        Patch("plan/leader_notes.py", "        if now_ms >= self._highest_ms - CAME_BACK_MS or", "        if True or"),
        tests=(SET_RIGHT + "test_every_schedule_goes_on_after_a_restart",),
    ),
    sabotage(
        "set-right-runs",
        "and it finds the due times alone: a retry stays a day away",
        Patch("plan/leader_notes.py", "        self.earlier |= found\n", ""),
        tests=(SET_RIGHT + "test_a_retry_that_was_a_day_away_comes_as_its_policy_says",),
    ),
    sabotage(
        "catch-up",
        "a run that catches up makes the due time right after it an overlap",
        Patch("plan/due_decision.py", "else memory.duration_ms", "else 0"),
        tests=("tests/runtime/test_catch_up.py::" + RIGHT_AFTER,),
    ),
    sabotage(
        "skips",
        "due times that are passed over are not counted",
        Patch(
            "plan/plan_builder.py", "        memory = count_skips(memory, skip[3], skip[2])", "        memory = memory"
        ),
        tests=(PROMISES + "test_every_due_time_that_is_over_was_fired_once_or_counted_once",),
    ),
)

WRITES = (
    sabotage(
        "S7.sqlite",
        "a settlement and its follow-ups are two transactions",
        Patch(
            "store/sqlite/store.py",
            "        return await self._write(now_ms, settle, [prepare(settlement) for settlement in settlements])\n",
            """        prepared = [prepare(settlement) for settlement in settlements]
        bare = [one._replace(follow_ups=()) for one in prepared]
        answers = await self._write(now_ms, settle, bare)
        rows = [row for one in prepared for row in one.follow_ups]
        if rows:
            await self.send(self.lanes().writer, lambda tx: runs.accept(tx, rows, runs.versions_of(tx, rows)))
        return answers
""",
        ),
        tests=(SWEEP,),
    ),
    sabotage(
        "alike.sqlite",
        "runs that are alike all have the first one's payload",
        Patch("store/relational/rows.py", "(run_id, *head, body, *tail)", "(run_id, *head, runs.bodies[0], *tail)"),
        tests=(SQLITE + "test_runs_alike_are_taken_as_a_list_of_them_is[plain]",),
    ),
    sabotage(
        "S8.sqlite",
        "the writer does not wait for the disk (synchronous = OFF)",
        Patch("store/sqlite/schema.py", '"PRAGMA synchronous = FULL"', '"PRAGMA synchronous = OFF"'),
        tests=("tests/store/test_sqlite_writer.py::test_every_answer_was_synced_first",),
    ),
    sabotage(
        "S8.sqlite-pragma",
        "the same, as the test of the settings sees it",
        Patch("store/sqlite/schema.py", '"PRAGMA synchronous = FULL"', '"PRAGMA synchronous = OFF"'),
        tests=("tests/store/test_sqlite_files.py::test_the_writer_waits_for_the_disk_and_nobody_maps_the_file",),
    ),
    sabotage(
        "early.sqlite",
        "calls are answered before they are committed",
        Patch(
            "store/sqlite/writer.py",
            "            transaction.write_counters()\n            failpoint()\n",
            "            transaction.write_counters()\n            answer(batch)\n            time.sleep(0.02)\n"
            "            failpoint()\n",
        ),
        tests=("tests/store/test_sqlite_writer.py::test_every_answer_was_synced_first", SWEEP),
    ),
    sabotage(
        "silent.memory",
        "a settlement does not tell the leader",
        Patch("store/memory/settle.py", "    state.tell_told(told)\n", ""),
        tests=(MEMORY + "test_the_leader_is_told_how_the_attempt_ended",),
    ),
    sabotage(
        "silent.sqlite",
        "a settlement does not tell the leader",
        Patch("store/sqlite/settle.py", "    batch.add_entries()\n", ""),
        tests=(SQLITE + "test_the_leader_is_told_how_the_attempt_ended",),
    ),
)

SABOTAGES: tuple[Sabotage, ...] = (
    *(*TOKENS, *LEASES, *FIRINGS, *WRITES, *BETWEEN_VERSIONS, *BESIDE_SPOILT, *UNREADABLE_JOB, *ONE_NAME),
    *(*ON_REDIS, *ON_POSTGRES, *OUTWARDS, *INWARDS),
)
