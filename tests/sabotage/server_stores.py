"""Sabotage of the stores that are servers: the same promises as elsewhere, in Lua and in SQL.

Each name is that of the same sabotage of the memory store and SQLite, with the store's own behind it.
"""

from __future__ import annotations

from tests.sabotage.copy import Patch, Sabotage

REDIS = "tests/conformance/test_redis.py::TestRedisStore::"
POSTGRES = "tests/conformance/test_postgres.py::TestPostgresStore::"
WHOLE = "tests/store/test_settle_atomicity.py::"
TWIN = "tests/store/test_run_cache.py::"
ENQUEUED = "tests/store/test_postgres_enqueue.py::"
OFFERS = "tests/store/test_redis_pipelined_claim.py::"
FAILOVER = "tests/store/test_redis_failover.py::"
PROMOTED = "test_a_third_server_that_is_promoted_has_all_that_was_answered"
TOKEN = "test_a_late_settlement_is_refused_once_somebody_else_has_the_run"
HANDED_BACK = "test_a_late_hand_back_is_refused_once_somebody_else_has_the_run"
RENEWED = "test_the_token_of_an_earlier_delivery_renews_nothing"
FENCED = "test_an_old_term_writes_nothing"
LEADS = "test_the_second_to_ask_is_told_who_leads"
ONCE = "test_the_same_due_fires_once"
BESIDE = "test_the_end_of_a_run_that_somebody_asked_for_lets_nobody_begin_beside_the_first"
ENDED_UNREAD = "test_a_run_that_was_cancelled_while_it_waited_is_waited_for"
KEPT = "test_an_entry_stays_as_long_as_a_job_that_was_to_learn_from_it_is_stale"
ALONG = "test_ends_that_a_job_has_learnt_do_not_go_along_with_it"
EARLIER = "test_an_earlier_due_does_not_fire_after_a_later_one"
LIVING = "test_a_lease_that_still_runs_is_left_alone"
UNCHARGED = "test_a_run_handed_back_is_ready_at_once_and_not_charged"
TOLD = "test_the_leader_is_told_how_the_attempt_ended"
ALIKE = "test_runs_alike_are_taken_as_a_list_of_them_is"


def sabotage(name: str, broken: str, *patches: Patch, tests: tuple[str, ...]) -> Sabotage:
    return Sabotage(name, broken, patches, tests)


ON_REDIS = (
    sabotage(
        "alike.redis",
        "of runs that are alike the first stands alone",
        Patch(
            "store/redis/codec.py", "zip(runs.ids, bodies, strict=True)]", "zip(runs.ids[:1], bodies[:1], strict=True)]"
        ),
        tests=(REDIS + ALIKE + "[plain]",),
    ),
    sabotage(
        "S1.redis",
        "settle ends a run whatever token it is shown",
        Patch(
            "store/redis/functions/settle.lua",
            "or run.tok ~= token then",
            "or (run.tok ~= token and verdict ~= true and not is_final(verdict)) then",
        ),
        tests=(REDIS + TOKEN,),
    ),
    sabotage(
        "S2.redis",
        "renew extends a lease whatever token it is shown",
        Patch("store/redis/functions/claim.lua", " and run.tok == token then", " then"),
        tests=(REDIS + RENEWED,),
    ),
    sabotage(
        "S3.redis",
        "a run is handed back (back, hold, retry) whatever token is shown",
        Patch(
            "store/redis/functions/settle.lua",
            "or run.tok ~= token then",
            "or (run.tok ~= token and (verdict == true or is_final(verdict))) then",
        ),
        tests=(REDIS + HANDED_BACK,),
    ),
    sabotage(
        "S4.redis",
        "a plan of an old term is written",
        Patch("store/redis/functions/advance.lua", "if not is_current(args.term) then", "if args.term < 0 then"),
        tests=(REDIS + FENCED,),
    ),
    sabotage(
        "S4.two-redis",
        "a term is given to whoever asks, though another holds it",
        Patch(
            "store/redis/functions/nodes.lua",
            "if is_vacant or holder == args.node then",
            'if is_vacant or args.node ~= "" then',
        ),
        tests=(REDIS + LEADS,),
    ),
    sabotage(
        "S5.redis",
        "a due fires again: neither the last due nor the run's id is asked",
        Patch("store/redis/functions/advance.lua", "if is_fired(job.last, row) then", "if false then"),
        tests=(REDIS + EARLIER, REDIS + ONCE),
    ),
    sabotage(
        "S6.unread-redis",
        "an end that came after the feed was read is not looked for",
        Patch("store/redis/functions/advance.lua", 'return is_unread(job.id) and "unread" or "ok"', 'return "ok"'),
        tests=(REDIS + ENDED_UNREAD,),
    ),
    sabotage(
        "S6.kept-redis",
        "an entry goes although a job that was to learn from it is stale",
        Patch("store/redis/functions/advance.lua", "  if id < 1 or plan.kept[id] then", "  if id < 1 then"),
        tests=(REDIS + KEPT + "[alone]",),
    ),
    sabotage(
        "S6.along-redis",
        "ends that a job has learnt go along with it into another version",
        Patch("store/redis/functions/move_jobs.lua", "if its and not its[mark] then", "if its then"),
        tests=(REDIS + ALONG,),
    ),
    sabotage(
        "S6.alone-redis",
        "a run that is to begin alone begins beside others",
        Patch(
            "store/redis/functions/advance.lua",
            "if has_mate(run) or is_unread(run.job) then",
            "if is_unread(run.job) then",
        ),
        tests=(REDIS + BESIDE,),
    ),
    sabotage(
        "S7.redis",
        "a settlement and its follow-ups are two calls",
        Patch(
            "store/redis/store.py",
            "        items = [codec.settlement_row(settlement) for settlement in settlements]\n",
            "        after = [run for settlement in settlements for run in settlement.follow_ups]\n"
            "        if after:\n"
            "            bare = [msgspec.structs.replace(each, follow_ups=()) for each in settlements]\n"
            "            done = await self.settle(bare, now_ms=now_ms)\n"
            "            asked = {'ready_max': 10**6, 'unless_live': False, 'audit': None, 'unless_moved': False}\n"
            "            await self.enqueue(after, (), now_ms=now_ms, **asked)\n"
            "            return done\n"
            "        items = [codec.settlement_row(settlement) for settlement in settlements]\n",
        ),
        tests=(WHOLE + "test_on_redis_a_settlement_whose_follow_up_cannot_be_written_is_not_there_either",),
    ),
    sabotage(
        "S9.redis",
        "every delivery has the same token",
        Patch("store/redis/functions/claim.lua", 'args.token .. ":" .. fence, args.node', '"t", args.node'),
        tests=(REDIS + TOKEN,),
    ),
    sabotage(
        "S11.redis",
        "leases are taken back although they have not ended",
        Patch(
            "store/redis/functions/claim.lua",
            'flush(leases), "-inf", now, "LIMIT", 0, TAKE_BACK_MAX)',
            'flush(leases), "-inf", "+inf", "LIMIT", 0, TAKE_BACK_MAX)',
        ),
        tests=(REDIS + LIVING,),
    ),
    sabotage(
        "S12.redis",
        "the stream of the work is cut at a length (MAXLEN)",
        Patch(
            "store/redis/functions/streams.lua",
            'call("XADD", stream, "*", "at", at)',
            'call("XADD", stream, "MAXLEN", 1000, "*", "at", at)',
        ),
        tests=("tests/store/test_redis_long_streams.py::test_no_entry_of_a_long_line_is_cut_off",),
    ),
    sabotage(
        "S15.redis",
        "a run handed back by a node that leaves is charged with a failure",
        Patch(
            "store/redis/functions/settle.lua",
            'put_back(run, "ready", math.max(op.now, verdict[2]))\n',
            'put_back(run, "ready", math.max(op.now, verdict[2]))\n    run.att = (run.att or 0) + 1\n',
        ),
        tests=(REDIS + UNCHARGED,),
    ),
    sabotage(
        "silent.redis",
        "a settlement does not tell the leader",
        Patch("store/redis/functions/settle.lua", "  feed.add_gathered()\n", ""),
        tests=(REDIS + TOLD,),
    ),
    sabotage(
        "offer.redis",
        "a claim that went with a wait is good for ever: a worker that hangs takes what rings, and nobody runs it",
        Patch("store/redis/functions/claim.lua", 'args["until"] and op.now > args["until"]', "false"),
        tests=(OFFERS + "test_an_offer_is_good_for_a_moment_only",),
    ),
    sabotage(
        "offer.redis-cut",
        "whoever stops waiting leaves its claim with the server for a while",
        Patch("store/redis/wakeup.py", "                self._connection.cut()\n", ""),
        tests=(OFFERS + "test_an_offer_is_taken_back_at_once",),
    ),
    sabotage(
        "wait.redis",
        "a write counts as done though no replica has confirmed it",
        Patch(
            "store/redis/connection.py",
            "if not isinstance(confirmed, int) or confirmed < needed:",
            "if not isinstance(confirmed, int):",
        ),
        tests=(FAILOVER + "test_with_wait_a_write_without_its_replica_is_not_called_done",),
    ),
    sabotage(
        "wait.redis-promoted",
        "a replica that is promoted while its old primary takes writes is not missed",
        Patch("store/redis/replicas.py", "return max(self._wanted, self._in_step)", "return self._wanted"),
        tests=("tests/store/test_redis_replicas.py::" + PROMOTED,),
    ),
    sabotage(
        "rollback.redis",
        "writes are lost by a failover, and nobody says so",
        Patch("store/redis/failover_detection.py", "        self._lose(self.count - left_at)\n", ""),
        tests=(FAILOVER + "test_what_the_replica_had_not_got_is_lost_and_that_is_said_once",),
    ),
    sabotage(
        "leap.redis",
        "the server's clock leaps ahead, and every lease is over at once",
        Patch("store/redis/functions/claim.lua", "  take_back(hold == 0)", "  take_back(hold >= 0)"),
        tests=(
            "tests/store/test_redis_streams.py::test_after_a_leap_of_the_servers_clock_the_living_keep_their_leases",
        ),
    ),
)

ON_POSTGRES = (
    sabotage(
        "alike.postgres",
        "ids of several lines go as lines",
        Patch("store/postgres/rows.py", 'if any(each.count("\\n") >= len(many) for each in lines):', "if False:"),
        tests=(POSTGRES + ALIKE + "[plain]",),
    ),
    sabotage(
        "S6.unread-postgres",
        "an end that came after the feed was read is not looked for",
        Patch(
            "store/postgres/queries/advance.sql", "WHERE $3::boolean AND version", "WHERE NOT $3::boolean AND version"
        ),
        tests=(POSTGRES + ENDED_UNREAD,),
    ),
    sabotage(
        "S6.kept-postgres",
        "an entry goes although a job that was to learn from it is stale",
        Patch("store/postgres/plan.py", "_consume(tx, plan, plan.kept(updates))", "_consume(tx, plan, frozenset())"),
        tests=(POSTGRES + KEPT + "[a note]",),
    ),
    sabotage(
        "S6.kept-postgres-learn",
        "an entry goes although a job that was to learn from it is stale, where the plan only learns",
        Patch("store/postgres/queries/advance.sql", " AND id NOT IN (SELECT entry FROM kept)", ""),
        tests=(POSTGRES + KEPT + "[alone]",),
    ),
    sabotage(
        "S6.along-postgres",
        "ends that a job has learnt go along with it into another version",
        Patch(
            "store/relational/feed_entries.py",
            " if mark not in learnt.get(end.job_id, (mark,))]",
            " if end.job_id in learnt]",
        ),
        tests=(POSTGRES + ALONG,),
    ),
    sabotage(
        "S6.alone-postgres",
        "a run that is to begin alone begins beside others",
        Patch("store/postgres/queries/advance.sql", " AS o WHERE NOT (", " AS o WHERE false AND NOT ("),
        tests=(POSTGRES + BESIDE,),
    ),
    sabotage(
        "S1.postgres",
        "settle ends a run whatever token it is shown",
        Patch(
            "store/postgres/settle.py",
            "or run.token != token:",
            "or (run.token != token and not isinstance(item.settlement.verdict, FINAL)):",
        ),
        tests=(POSTGRES + TOKEN,),
    ),
    sabotage(
        "S1.postgres-plain",
        "the one statement that ends many runs does not ask whose they are",
        Patch("store/postgres/queries/settle.sql", " AND q.token = coalesce(b.token, ($2::text[])[1])", ""),
        tests=(TWIN + "test_a_plain_end_that_comes_after_another_handle_took_the_run_is_lost[postgres]",),
    ),
    sabotage(
        "S2.postgres",
        "renew extends a lease whatever token it is shown",
        Patch("store/postgres/queries/renew.sql", " AND q.token = a.token ORDER", " ORDER"),
        Patch(
            "store/postgres/claim.py",
            "{(row[0], row[1]): got(row[2]) for row in found}",
            "{(row[0], token): got(row[2]) for row in found for token in tokens}",
        ),
        tests=(POSTGRES + RENEWED,),
    ),
    sabotage(
        "S3.postgres",
        "a run is handed back (back, hold, retry) whatever token is shown",
        Patch(
            "store/postgres/settle.py",
            "or run.token != token:",
            "or (run.token != token and isinstance(item.settlement.verdict, FINAL)):",
        ),
        tests=(POSTGRES + HANDED_BACK,),
    ),
    sabotage(
        "S4.postgres",
        "a plan of an old term is written",
        Patch("store/postgres/plan.py", "if number != term or not holder:", "if term < 0:"),
        tests=(POSTGRES + FENCED,),
    ),
    sabotage(
        "S4.postgres-learn",
        "a turn of an old term in which nothing fires is written",
        Patch(
            "store/postgres/queries/advance.sql",
            "t.number = $3::bigint AND t.holder <> '' AS is_ours",
            "$3::bigint > 0 AS is_ours",
        ),
        tests=(
            "tests/store/test_postgres_learning_plan.py::test_an_old_term_reads_nothing_away_and_remembers_nothing",
        ),
    ),
    sabotage(
        "S4.two-postgres",
        "a term is given to whoever asks, though another holds it",
        Patch("store/relational/nodes.py", "if is_vacant or holder == node_id:", "if is_vacant or node_id:"),
        Patch("store/postgres/queries/nodes.sql", "AND holder NOT IN ('', $3::text)", "AND holder = ''"),
        tests=(POSTGRES + LEADS,),
    ),
    sabotage(
        "S5.postgres",
        "a due fires again: neither the last due nor the run's id is asked",
        Patch(
            "store/relational/plan.py",
            "if run.id in self._known or facts.is_fired(run.due_ms, self._now_ms):",
            "if run.id in self._known and facts.last_due_ms is None:",
        ),
        tests=(POSTGRES + EARLIER, POSTGRES + ONCE),
    ),
    sabotage(
        "S5.postgres-plain",
        "the one statement that makes many runs does not look whether one of them has ended meanwhile",
        Patch("store/postgres/migrations/0001_schema.sql", "  PERFORM {s}.refuse_ended(ids);\n", ""),
        tests=(ENQUEUED + "test_an_id_that_ends_while_it_is_made_again_is_not_made_again",),
    ),
    sabotage(
        "S7.postgres",
        "a settlement and its follow-ups are two transactions",
        Patch(
            "store/postgres/store.py",
            "        items = [prepare(settlement, rows.made_row) for settlement in settlements]\n",
            """        after = [run for settlement in settlements for run in settlement.follow_ups]
        if after:
            from msgspec.structs import replace
            bare = [replace(settlement, follow_ups=()) for settlement in settlements]
            done = await self.settle(bare, now_ms=now_ms)
            await self._write(now_ms, runs.enqueue, [rows.made_row(run) for run in after], (), 10**6, False)
            return done
        items = [prepare(settlement, rows.made_row) for settlement in settlements]
""",
        ),
        tests=(WHOLE + "test_on_postgresql_a_settlement_whose_follow_up_cannot_be_written_is_not_there_either",),
    ),
    sabotage(
        "S9.postgres",
        "every delivery has the same token",
        Patch(
            "store/postgres/queries/claim.sql",
            "token = $1::text || ':' || (q.fence + 1)",
            "token = left($1::text, 0) || 't'",
        ),
        Patch("store/postgres/claim.py", 'f"{request.token}:{row[FENCE]}"', '"t"'),
        Patch("store/relational/rows.py", 'f"{token}:1"', '"t"'),
        tests=(POSTGRES + TOKEN,),
    ),
    sabotage(
        "S11.postgres",
        "leases are taken back although they have not ended",
        Patch("store/postgres/claim.py", " or seen.ends_ms > seen.now_ms:", ":"),
        Patch(
            "store/postgres/queries/claim.sql", "q.lease_until_ms <= $1::bigint\nORDER BY", "$1::bigint > 0\nORDER BY"
        ),
        tests=(POSTGRES + LIVING,),
    ),
    sabotage(
        "S15.postgres",
        "a run handed back by a node that leaves is charged with a failure",
        Patch(
            "store/postgres/queries/settle.sql",
            "UPDATE {s}.queue AS q\nSET state = b.state, held_reason = b.reason, visible_ms = b.visible_ms, "
            "settled = q.token, owner = '', lease_until_ms = 0,\n",
            "WITH charged AS (UPDATE {s}.runs SET attempt = attempt + 1 WHERE seq = ANY($1::bigint[]))\n"
            "UPDATE {s}.queue AS q\nSET state = b.state, held_reason = b.reason, visible_ms = b.visible_ms, "
            "settled = q.token, owner = '', lease_until_ms = 0,\n",
        ),
        tests=(POSTGRES + UNCHARGED,),
    ),
    sabotage(
        "silent.postgres",
        "a settlement does not tell the leader",
        Patch("store/postgres/settle.py", "        self.tx.add_ends(self.ends)\n", ""),
        Patch("store/postgres/queries/settle.sql", "$10::bytea FROM sure\n", "$10::bytea FROM sure WHERE false\n"),
        tests=(POSTGRES + TOLD,),
    ),
    sabotage(
        "leap.postgres",
        "the server's clock leaps ahead, and every lease is over at once",
        Patch("store/postgres/claim.py", "if now_ms is None else 0", "if now_ms == 0 else 0"),
        tests=(
            "tests/store/test_postgres_clock_jumps.py::test_after_a_leap_of_the_servers_clock_the_living_keep_their_leases",
        ),
    ),
)
