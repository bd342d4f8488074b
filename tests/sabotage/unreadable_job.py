"""Sabotage of jobs that cannot be read: lists, acts by id, declarations, claims."""

from __future__ import annotations

from tests.sabotage.copy import Patch, Sabotage

JOB = "tests/acceptance/test_unreadable_job.py::"
BESIDE = "tests/acceptance/test_unreadable_notes_and_runs.py::"
RESTS = "tests/unit/test_handed_back_runs.py::"
IN_SQLITE = "tests/store/test_sqlite_unreadable.py::"
LOCKED_OUT = "one job that cannot be read locks out whoever wants to see to it"


def sabotage(name: str, broken: str, *patches: Patch, tests: tuple[str, ...]) -> Sabotage:
    return Sabotage(f"unreadable.{name}", broken, patches, tests)


UNREADABLE_JOB = (
    sabotage(
        "due",
        "one job that nobody here fires hides for ever that others are due and not fired",
        Patch(
            "app/operations/status.py",
            "await readable_due(self._store.of_version(version.number), before_ms=now_ms, limit=limit)",
            "(await readable_part(self._store.of_version(version.number).due(before_ms=now_ms, limit=limit)))[0]",
        ),
        tests=(BESIDE + "test_a_job_that_is_due_is_told_beside_more_overdue_ones_that_cannot_be_read[redis]",),
    ),
    sabotage(
        "pause",
        "one pause that cannot be read hides all jobs",
        Patch(
            "app/operations/control.py",
            "(await readable_stops(self._store.notes(STOP)))[0]",
            "await self._store.notes(STOP)",
        ),
        tests=(BESIDE + "test_a_pause_that_cannot_be_read_stands_and_hides_no_job[sqlite]",),
    ),
    sabotage(
        "pause-health",
        "health does not tell of a pause that the leader obeys",
        Patch("app/health.py", "readable_stops(store.notes(STOP))", "readable_part(store.notes(STOP))"),
        tests=(BESIDE + "test_a_pause_that_cannot_be_read_stands_and_hides_no_job[redis]",),
    ),
    sabotage(
        "run",
        "one live run that cannot be read hides all jobs and runs",
        Patch(
            "app/operations/runs.py",
            "await readable_part(self._store.list_runs(where, after=after, limit=limit))",
            "await self._store.list_runs(where, after=after, limit=limit), ()",
        ),
        tests=(BESIDE + "test_a_run_that_cannot_be_read_hides_no_job_and_no_run[postgres]",),
    ),
    sabotage(
        "run-many",
        "one job of many that cannot be run keeps those behind it from running",
        Patch("cli/jobs.py", "if not isinstance(await operations.jobs.find_job(job_id), Unreadable):", "if True:"),
        tests=(BESIDE + "test_who_runs_many_jobs_is_told_of_each[sqlite]",),
    ),
    sabotage(
        "for-good",
        "whoever asks for a job that cannot be read is told to try again, for ever",
        Patch("server/problems.py", '(Illegible, 409, "record', '(Illegible, 503, "record'),
        tests=(JOB + "test_the_api_tells_nobody_to_try_again_what_it_cannot_read[sqlite]",),
    ),
    sabotage(
        "listed",
        "one job that cannot be read hides all others",
        Patch(
            "app/operations/jobs.py",
            "await readable_part(self._store.list_jobs(where, after=after, limit=limit))",
            "await self._store.list_jobs(where, after=after, limit=limit), ()",
        ),
        tests=(JOB + "test_the_others_are_listed_and_it_is_named[sqlite]",),
    ),
    sabotage(
        "named",
        "it is left out, and nobody is told",
        Patch(
            "app/operations/jobs.py",
            "list_jobs(where, after=after, limit=limit))\n        return replace(page, unreadable=unreadable)",
            "list_jobs(where, after=after, limit=limit))\n        return replace(page)",
        ),
        tests=(JOB + "test_the_others_are_listed_and_it_is_named[redis]",),
    ),
    sabotage(
        "found",
        LOCKED_OUT,
        Patch(
            "app/operations/jobs.py", "await readable_part(store.get_jobs([name]))", "await store.get_jobs([name]), ()"
        ),
        tests=(JOB + "test_it_is_paused_resumed_and_cancelled_by_its_id[sqlite]",),
    ),
    sabotage(
        "deleted",
        LOCKED_OUT,
        Patch(
            "app/operations/jobs.py",
            "await readable_part(store.get_jobs(ids[start : start + PAGE_MAX]))",
            "await store.get_jobs(ids[start : start + PAGE_MAX]), ()",
        ),
        tests=(JOB + "test_it_is_deleted_with_what_waits_of_it[postgres]",),
    ),
    sabotage(
        "batch",
        "a run of one job that cannot be read keeps those of all others out",
        Patch(
            "app/operations/runs.py",
            "await readable_part(self._store.get_jobs(ids[start : start + PAGE_MAX]))",
            "await self._store.get_jobs(ids[start : start + PAGE_MAX]), ()",
        ),
        tests=(JOB + "test_the_api_answers_each_run_of_a_batch_by_itself[sqlite]",),
    ),
    sabotage(
        "travels",
        "from afar the refusal is another error, which nobody expects",
        Patch(
            "client/rpc_codec.py", 'ErrorRecord("StoreError", hide(str(error)))', "ErrorRecord(kind, hide(str(error)))"
        ),
        tests=(JOB + "test_what_cannot_be_read_travels_as_it_is_and_who_wants_it_gets_the_same_words[sqlite]",),
    ),
    sabotage(
        "declared",
        "an older node puts its own job over that of a newer release",
        Patch("plan/reconcile.py", "job_id not in before and job_id not in alone", "job_id not in before"),
        tests=(JOB + "test_an_older_node_starts_and_leaves_alone_what_a_newer_release_made_of_its_job[sqlite]",),
    ),
    sabotage(
        "said",
        "a node says of a job that it leaves alone at every look",
        Patch("app/declarations.py", "            if job.name not in before:\n", "            if True:\n"),
        tests=(JOB + "test_an_older_node_starts_and_leaves_alone_what_a_newer_release_made_of_its_job[redis]",),
    ),
    sabotage(
        "again",
        "a job that was left alone is not declared when it is gone",
        Patch("app/declarations.py", " or any(self._unreadable.values()):", ":"),
        tests=(JOB + "test_an_older_node_starts_and_leaves_alone_what_a_newer_release_made_of_its_job[sqlite]",),
    ),
    sabotage(
        "soon",
        "a newer node waits a minute for what an older one has met first",
        Patch("store/decoding.py", "REST_MS << min(fence - 1, 9)", "REST_MS << 9"),
        tests=(
            JOB + "test_a_newer_node_has_soon_what_an_older_one_handed_back[redis]",
            RESTS + "test_a_rest_is_doubled_and_at_most_a_minute",
        ),
    ),
    sabotage(
        "longer",
        "what no node can read is claimed and handed back every second, for ever",
        Patch("store/decoding.py", "REST_MS << min(fence - 1, 9)", "REST_MS"),
        tests=(
            RESTS + "test_a_rest_is_doubled_and_at_most_a_minute",
            IN_SQLITE + "test_the_runs_of_a_job_that_cannot_be_read_wait_for_a_node_that_can_and_the_others_are_run",
        ),
    ),
)
