"""What is broken on purpose where two files or programs have one name, and where a producer starts first."""

from __future__ import annotations

from tests.sabotage.copy import Patch, Sabotage

NAME = "tests/runtime/test_source_conflicts.py::"
PLAN = "tests/unit/test_plan_reconcile.py::"
FIRST = "tests/runtime/test_enqueue_declares.py::"
TAKES = "a text of the same name deletes the jobs of a living node"


def sabotage(name: str, broken: str, *patches: Patch, tests: tuple[str, ...]) -> Sabotage:
    return Sabotage(f"name.{name}", broken, patches, tests)


ONE_NAME = (
    sabotage(
        "start",
        TAKES,
        Patch(
            "app/declarations.py",
            "        if coming is PendingDeclaration.DRAFT:\n",
            "        if coming is not PendingDeclaration.RELOAD:\n",
        ),
        tests=(NAME + "test_another_file_of_the_name_is_refused_and_nothing_of_the_first_is_lost[sqlite]",),
    ),
    sabotage(
        "most",
        "a file that lost most of its lines deletes the jobs that are no longer in it",
        Patch("plan/reconcile.py", "if is_most and len(taken) >= TAKEN_MIN and mine.mark not in had:", "if False:"),
        tests=(NAME + "test_a_reload_that_takes_most_away_is_refused_and_what_held_goes_on",),
    ),
    sabotage(
        "had",
        "a text that was there before deletes the jobs of a living node that has another one",
        Patch("app/declarations.py", "if follows is not None and mine.mark in", "if mine.mark in"),
        tests=(NAME + "test_a_text_that_was_there_before_takes_nothing_from_a_living_node_either[sqlite]",),
    ),
    sabotage(
        "missed",
        "a node that missed an edit which is taken back refuses the text",
        Patch("app/declarations.py", "if follows is not None and mine.mark in history.had:", "if False:"),
        Patch("app/declarations.py", "mark in history.had and _followed(source, me) == mark", "False"),
        tests=(NAME + "test_an_edit_that_is_taken_back_is_followed_by_a_node_that_missed_it[sqlite-order1]",),
    ),
    sabotage(
        "holds",
        "a program that replaced a living one is refused when it restarts",
        Patch("app/declarations.py", "return history.had[-1:] == (mark,)", "return False"),
        tests=(NAME + "test_a_program_that_replaced_a_living_one_may_restart_and_that_one_may_not[sqlite]",),
    ),
    sabotage(
        "at-odds",
        "a node whose jobs were replaced looks well",
        Patch("app/declarations.py", "for each in sorted(found - self._at_odds, key=str):", "for each in ():"),
        Patch(
            "app/health.py", "declaration_conflicts=tuple(declaration_conflicts(serving, latest, now_ms=now_ms)),", ""
        ),
        tests=(NAME + "test_a_node_whose_jobs_were_replaced_says_so_and_health_names_both[sqlite]",),
    ),
    sabotage(
        "release",
        "a newer release is refused as if it were another program",
        Patch("plan/reconcile.py", "[job for job in missing if job.release == mine.release]", "list(missing)"),
        tests=(PLAN + "test_a_greater_release_decides_as_before_whatever_lives",),
    ),
    sabotage(
        "reload",
        "two nodes that read one edited file again refuse each other",
        Patch("app/declarations.py", "None if coming is PendingDeclaration.START else _followed(source, me)", "None"),
        tests=(NAME + "test_two_nodes_that_read_one_edited_file_again_do_not_refuse_each_other[sqlite-order0]",),
    ),
    sabotage(
        "replaced",
        "what was replaced takes its place back by a restart",
        Patch("app/declarations.py", "_without(had if replaces is None else (), mark)", "_without(had, mark)"),
        tests=(NAME + "test_what_was_replaced_does_not_come_back_unasked[sqlite]",),
    ),
    sabotage(
        "race",
        "of two files that start at once on an empty store one deletes the other's jobs",
        Patch("app/declarations.py", "    if there.had != had:\n        return False\n", ""),
        tests=(NAME + "test_of_two_files_that_start_at_once_the_second_one_is_refused",),
    ),
    sabotage(
        "again",
        "a second look deletes what a living node has written meanwhile",
        Patch("plan/reconcile.py", "is_left = (is_code or is_again) and", "is_left = is_code and"),
        tests=(NAME + "test_a_look_of_a_file_that_holds_takes_nothing_from_a_living_node",),
    ),
    sabotage(
        "wait",
        "a start with an edited file fails while the beat of a killed node runs out",
        Patch("app/process.py", "if not living or has_beaten", "if living or has_beaten"),
        tests=(NAME + "test_a_start_waits_until_a_killed_node_of_the_old_text_is_gone[sqlite]",),
    ),
    sabotage(
        "producer",
        "a producer changes what the nodes declare",
        Patch("app/operations/jobs.py", "put = JobPut(job, revision=0)", "put = JobPut(job)"),
        Patch(
            "app/operations/jobs.py",
            "if not any(answer.answer is Answer.STALE for answer in answers[:1]):",
            "if False:",
        ),
        tests=(FIRST + "test_a_definition_that_is_there_is_not_changed[sqlite]",),
    ),
    sabotage(
        "producer-release",
        "a producer of an older release brings back what a newer one dropped",
        Patch("app/operations/jobs.py", "if newest > job.release:", "if False:"),
        tests=(FIRST + "test_what_a_newer_release_dropped_is_not_brought_back[sqlite]",),
    ),
)
