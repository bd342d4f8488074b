"""Sabotage of records that cannot be read: each store that has the seam, and the plan."""

from __future__ import annotations

from tests.sabotage.copy import Patch, Sabotage

SPOILT = "tests/store/test_leader_unreadable_records.py::"
ASIDE = "tests/unit/test_plan_unreadable.py::"
IN_REDIS = "tests/store/test_redis_unreadable.py::"
AN_ENTRY = SPOILT + "test_an_entry_that_cannot_be_read_is_set_aside_and_said_once[{}]"
A_JOB = SPOILT + "test_all_other_jobs_fire_beside_one_that_cannot_be_read_and_it_is_left_as_it_is[{}]"
A_NUMBER = SPOILT + "test_what_somebody_wrote_into_the_feed_stops_nobody_who_tells_the_leader[{}]"
PAST_IT = SPOILT + "test_a_firing_and_a_move_look_past_an_entry_that_cannot_be_read[{}]"
FOUND_AGAIN = SPOILT + "test_entries_that_came_with_the_work_of_others_are_found_again_in_the_store[sqlite]"
STOPS = "one entry that somebody put into the feed stops the leader"
ONE_JOB = "one job that the leader cannot read stops all others"
NEXT_NUMBER = "an entry under the next number of ours breaks every write that tells the leader"
FALLS_OVER = "a firing that looks for unread ends falls over one that cannot be read"
NO_PAUSE = "a pause that cannot be read is none"
PAUSED = SPOILT + "test_a_held_run_and_a_pause_that_cannot_be_read_do_not_stop_the_leader_and_the_pause_stands[{}]"
IN_SQLITE = "tests/store/test_sqlite_unreadable.py::"
IN_POSTGRES = "tests/store/test_postgres_unfit_server.py::"
STAYS = "a run that somebody else wrote stays leased, and with it all that was claimed beside it"
NO_NUMBER = "one number that somebody spoilt in one run stops all claims of its version for good"
BURIES = "an older node makes dead letters of all runs of a job that only a newer one can read"
DIES = "test_a_run_that_cannot_be_read_dies_of_it_and_the_others_are_run"
ENDS = "test_a_lease_that_was_spoilt_ends_like_any_other"
WAITS = "test_the_runs_of_a_job_that_cannot_be_read_wait_for_a_node_that_can_and_the_others_are_run"
CAUSE = Patch(
    "store/relational/feed_entries.py", "        if 0 <= cause < len(CAUSES)\n", "        if cause is not None\n"
)
BURY = (
    Patch(
        "store/decoding.py", "Back(now_ms + rest_ms(each.fence))", '__import__("pollux.model").model.Dead("unreadable")'
    ),
)


def sabotage(name: str, broken: str, *patches: Patch, tests: tuple[str, ...]) -> Sabotage:
    return Sabotage(f"legible.{name}", broken, patches, tests)


RUNS = (
    Sabotage(
        "spoilt.redis",
        STAYS,
        (
            Patch(
                "store/redis/store.py",
                '                broken[run_id.decode()] = f"it cannot be read ({error})"\n',
                "                raise error\n",
            ),
        ),
        (IN_REDIS + DIES + "[9-spoil_the_body]",),
    ),
    Sabotage(
        "spoilt.sqlite",
        STAYS,
        (
            Patch(
                "store/relational/claim.py",
                'dead.append(Settlement(each.run_id, each.token, Dead(f"it cannot be read ({error})")))',
                "raise error",
            ),
        ),
        (IN_SQLITE + DIES + "[9-payload]",),
    ),
    Sabotage(
        "spoilt.postgres",
        STAYS,
        (
            Patch(
                "store/relational/claim.py",
                'dead.append(Settlement(each.run_id, each.token, Dead(f"it cannot be read ({error})")))',
                "raise error",
            ),
        ),
        (IN_POSTGRES + DIES + "[payload]",),
    ),
    Sabotage(
        "spoilt.redis-number",
        NO_NUMBER,
        (
            Patch(
                "store/redis/functions/runs.lua",
                '    if kind and (type(value) ~= kind or (kind == "number" and ',
                '    if false and (type(value) ~= kind or (kind == "number" and ',
            ),
        ),
        (IN_REDIS + "test_one_number_that_is_none_does_not_stop_the_claims_of_the_others[fence-x]",),
    ),
    Sabotage("spoilt.sqlite-number", NO_NUMBER, (CAUSE,), (IN_SQLITE + ENDS + "[cause]",)),
    Sabotage("spoilt.postgres-number", NO_NUMBER, (CAUSE,), (IN_POSTGRES + ENDS + "[cause]",)),
    Sabotage("aside.redis", BURIES, BURY, (IN_REDIS + WAITS,)),
    Sabotage("aside.sqlite", BURIES, BURY, (IN_SQLITE + WAITS,)),
    Sabotage("aside.postgres", BURIES, BURY, (IN_POSTGRES + WAITS,)),
)

BESIDE_SPOILT = (
    *RUNS,
    sabotage(
        "entry-sqlite",
        STOPS,
        Patch("store/sqlite/store.py", "rows.entry(row[1])", "rows.decode_entry(row[1])"),
        tests=(AN_ENTRY.format("sqlite"),),
    ),
    sabotage(
        "entry-postgres",
        STOPS,
        Patch(
            "store/postgres/store.py",
            "rows import Row, encode, entry",
            "rows import Row, decode_entry as entry, encode",
        ),
        tests=(AN_ENTRY.format("postgres"),),
    ),
    sabotage(
        "entry-redis",
        STOPS,
        Patch("store/redis/codec.py", "        return spoilt(error, item[1])\n", "        raise\n"),
        tests=(AN_ENTRY.format("redis"),),
    ),
    sabotage(
        "jobs-sqlite",
        ONE_JOB,
        Patch(
            "store/handle.py",
            "return decoder.answer(decoder.jobs(found))",
            "return [*map(self.backend.job, found)] if decoder else []",
        ),
        tests=(A_JOB.format("sqlite"),),
    ),
    sabotage(
        "jobs-postgres",
        ONE_JOB,
        Patch(
            "store/handle.py",
            "return decoder.answer(decoder.jobs(found))",
            "return [*map(self.backend.job, found)] if decoder else []",
        ),
        tests=(A_JOB.format("postgres"),),
    ),
    sabotage(
        "jobs-redis",
        ONE_JOB,
        Patch(
            "store/handle.py",
            "return decoder.answer(decoder.jobs(found))",
            "return [*map(self.backend.job, found)] if decoder else []",
        ),
        tests=(A_JOB.format("redis"),),
    ),
    sabotage(
        "number-redis",
        "an entry with a number far ahead breaks every write that tells the leader, in its middle",
        Patch("store/redis/functions/feed.lua", 'redis.pcall("XADD", key, each[1]', 'call("XADD", key, each[1]'),
        tests=(A_NUMBER.format("redis"),),
    ),
    sabotage(
        "number-postgres-plain",
        "the same: a good run is called spoilt",
        Patch(
            "store/postgres/errors.py", "(PlainWriteRefused, pg.UniqueViolationError, *AGAIN)", "(PlainWriteRefused,)"
        ),
        tests=(
            "tests/store/test_postgres_sequences.py::test_a_plain_settlement_goes_behind_an_entry_that_has_its_number[1]",
        ),
    ),
    sabotage(
        "number-sqlite",
        NEXT_NUMBER,
        Patch("store/sqlite/transaction.py", "except apsw.ConstraintError:", "except ZeroDivisionError:"),
        tests=(A_NUMBER.format("sqlite"),),
    ),
    sabotage(
        "number-postgres",
        NEXT_NUMBER,
        Patch(
            "store/postgres/database.py",
            "(TransactionRetry, asyncpg.UniqueViolationError, *AGAIN)",
            "(TransactionRetry, *AGAIN)",
        ),
        tests=(A_NUMBER.format("postgres"),),
    ),
    sabotage(
        "unread-redis",
        FALLS_OVER,
        Patch(
            "store/redis/functions/advance.lua",
            'pcall(cmsgpack.unpack, item[2][4] or "")',
            "true, cmsgpack.unpack(item[2][4])",
        ),
        tests=(PAST_IT.format("redis"),),
    ),
    sabotage(
        "unread-sqlite",
        FALLS_OVER,
        Patch(
            "store/relational/feed_entries.py",
            "    except UNREADABLE:\n        return []",
            "    except ZeroDivisionError:\n        return []",
        ),
        tests=(PAST_IT.format("sqlite"),),
    ),
    sabotage(
        "unread-postgres",
        FALLS_OVER,
        Patch(
            "store/relational/feed_entries.py",
            "    except UNREADABLE:\n        return []",
            "    except ZeroDivisionError:\n        return []",
        ),
        tests=(PAST_IT.format("postgres"),),
    ),
    sabotage(
        "prune-redis",
        "a once-job whose memory is no JSON stops all pruning",
        Patch("store/redis/functions/jobs.lua", "pcall(cjson.decode, ", "true, cjson.decode("),
        tests=(
            SPOILT + "test_a_once_job_whose_memory_cannot_be_read_is_pruned_like_all_others[redis-ended]",
            SPOILT + "test_a_once_job_whose_memory_cannot_be_read_is_pruned_like_all_others[redis-cancelled]",
        ),
    ),
    sabotage(
        "all-jobs",
        "a job that only a spoilt entry reported never fires",
        Patch("plan/planner.py", "            if found.requests_scan:\n", "            if False:\n"),
        tests=(ASIDE + "test_a_job_that_a_spoilt_entry_reported_is_found_among_all[1]", FOUND_AGAIN),
    ),
    sabotage(
        "rebuilt",
        "pauses, nodes and held runs that a spoilt entry reported are never known",
        Patch("plan/planner.py", "return rebuild_ms is not None and", "return False and rebuild_ms is not None and"),
        tests=(FOUND_AGAIN,),
    ),
    sabotage(
        "scan-requested",
        "a leader that dies while it reads all jobs after a spoilt entry loses those that it did not reach",
        Patch(
            "plan/plan_builder.py",
            "is_scanned = unreadable.requests_scan and term.inbox.is_scanned",
            "is_scanned = unreadable.requests_scan",
        ),
        tests=(
            ASIDE + "test_a_leader_that_dies_during_the_scan_leaves_it_to_the_next_one[5]",
            ASIDE + "test_it_is_consumed_at_once_and_the_note_requests_the_scan_until_all_that_it_found_is_written",
        ),
    ),
    sabotage(
        "apart",
        "a stream of spoilt entries rebuilds the planner every turn",
        Patch("plan/leader_notes.py", "now_ms + REBUILD_APART_MS if", "now_ms if"),
        tests=(ASIDE + "test_a_stream_of_them_rebuilds_the_planner_once_in_some_seconds_and_keeps_no_job_from_firing",),
    ),
    sabotage(
        "kept",
        "an entry that was put aside is shown nowhere",
        Patch("model/leader_notes.py", "kept = list(named)[-KEPT_MAX:]", "kept = list(named)[:0]"),
        tests=(ASIDE + "test_a_job_that_a_spoilt_entry_reported_is_found_among_all[1]", AN_ENTRY.format("sqlite")),
    ),
    sabotage(
        "noted",
        "the next leader does not know of a job that the one before could not read",
        Patch("plan/leader_notes.py", "if value != self._stored[key]]", "if False]"),
        tests=(
            ASIDE + "test_the_next_leader_looks_at_it_first_though_its_entry_is_consumed",
            SPOILT + "test_the_leader_after_one_that_could_not_read_a_new_job_plans_it[sqlite]",
        ),
    ),
    sabotage(
        "noted-whole",
        "a leader that dies while it looks at all jobs leaves a note of some",
        Patch("plan/plan_builder.py", "jobs = [] if term.inbox.scan_all is not None else ", "jobs = "),
        tests=(ASIDE + "test_a_leader_that_dies_before_it_has_looked_at_all_leaves_the_note_as_it_is",),
    ),
    sabotage(
        "schedules",
        "a job whose schedule the leader cannot use never fires, and no report shows it",
        Patch("plan/planner.py", "        term.unreadable.schedules[job.id] = why\n", "        pass\n"),
        Patch(
            "plan/plan_builder.py",
            "        term.unreadable.schedules[job_id] = slot.memory.last_error\n",
            "        pass\n",
        ),
        tests=(
            ASIDE + "test_a_schedule_that_cannot_be_used_is_named_until_it_is_mended",
            ASIDE + "test_a_schedule_that_turns_bad_when_it_is_due_is_named_at_once",
            ASIDE + "test_the_next_leader_tries_it_first",
            "tests/acceptance/test_health_command.py::test_a_job_whose_schedule_the_leader_cannot_use_is_told",
        ),
    ),
    sabotage(
        "again",
        "a job that can be read again is not looked at",
        Patch("plan/leader_notes.py", "        return is_over\n", "        return False\n"),
        tests=(ASIDE + "test_it_is_looked_at_again_after_a_minute",),
    ),
    sabotage(
        "page",
        "a page of due jobs that cannot be read hides those behind it",
        Patch("plan/planner.py", "reach(window, len(found), max(", "reach(window, len(found) - 1, max("),
        tests=(ASIDE + "test_a_page_of_due_jobs_that_nobody_can_read_does_not_hide_those_behind_it",),
    ),
    sabotage(
        "planned",
        "an older leader goes on planning a job that a newer release has put",
        Patch("plan/planner.py", "    term.disarm(job.name)\n    term.slots.drop(job.name)\n", ""),
        tests=(ASIDE + "test_one_that_was_planned_is_planned_no_more",),
    ),
    *(
        sabotage(
            f"pause-{store}",
            NO_PAUSE,
            Patch("store/decoding.py", "for each in unreadable if each.name.startswith(STOP)", "for each in ()"),
            tests=(PAUSED.format(store),),
        )
        for store in ("sqlite", "redis", "postgres")
    ),
    sabotage(
        "start",
        "a node does not start where a job of its source cannot be read",
        Patch(
            "app/declarations.py",
            "page, _ = await readable_part(store.list_jobs(where, after=after, limit=PAGE_MAX))",
            "page = await store.list_jobs(where, after=after, limit=PAGE_MAX)",
        ),
        tests=(SPOILT + "test_a_node_starts_beside_spoilt_jobs_of_its_own_source_and_leaves_them[sqlite]",),
    ),
    sabotage(
        "delete",
        "a job that cannot be read cannot be deleted either",
        Patch(
            "app/operations/jobs.py",
            "found, _ = await readable_part(store.get_jobs(",
            "found, _ = (await store.get_jobs(",
        ),
        Patch("app/operations/jobs.py", "PAGE_MAX]))\n        jobs", "PAGE_MAX]), ())\n        jobs"),
        tests=(SPOILT + "test_whoever_is_told_to_delete_it_or_put_it_anew_can[sqlite]",),
    ),
)
