"""What is broken on purpose at the doors: who comes in by the API, and where polls go out to.

S16 is about signatures; until there are webhooks it is the token that must not be compared with `==`.
"""

from __future__ import annotations

from tests.sabotage.copy import Patch, Sabotage

LISTENING = "tests/acceptance/test_api_sockets.py::"
SECURITY = "tests/acceptance/test_api_security.py::"
TOKENS = "tests/acceptance/test_api_tokens.py::"
LIMITS = "tests/acceptance/test_api_limits.py::"
JUDGED = "tests/unit/test_http_addresses.py::test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_judged"
ADDRESSES = "tests/unit/test_http_addresses.py::"
SILENT = "tests/acceptance/test_silent_paths.py::"
POLLING = "tests/acceptance/test_http_handler.py::"
REAL = ("sqlite", "redis", "postgres")
EDITED = (
    "tests/store/test_audit_chain.py::"
    "test_a_line_that_was_edited_deleted_or_moved_is_named[{}-edited-line 3 was changed]"
)
AUDITED = "tests/acceptance/test_api_audit.py::"
CUT_OFF = "tests/acceptance/test_store_move_resume.py::"
SEALED = "tests/acceptance/test_moved_store.py::"


def sabotage(name: str, broken: str, *patches: Patch, tests: tuple[str, ...]) -> Sabotage:
    return Sabotage(name, broken, patches, tests)


OUTWARDS = (
    sabotage(
        "S17",
        "a name is resolved once to be judged, and again to connect",
        Patch(
            "handlers/http/client.py",
            '                raise DeniedAddress(f"{host}: {refusal}")\n        return found',
            '                raise DeniedAddress(f"{host}: {refusal}")\n'
            "        return await self._inner.resolve(host, port, family)",
        ),
        tests=(JUDGED,),
    ),
    sabotage(
        "S18",
        "a redirect is followed wherever it leads",
        Patch(
            "handlers/http/client.py",
            "            pool.check(hop)\n",
            "            if not hops:\n                pool.check(hop)\n",
        ),
        tests=(
            "tests/acceptance/test_hostile_server.py::test_a_redirect_leads_nowhere_that_the_job_itself_may_not_go",
        ),
    ),
    sabotage(
        "S18.put",
        "a job that comes by API may name any address",
        Patch("server/auth.py", "if words := context.app.out_of_reach(job):", 'if words := "":'),
        tests=(SECURITY + "test_a_job_that_comes_by_api_names_no_address_inside",),
    ),
    sabotage(
        "S18.readings",
        "an IPv6 address that holds an IPv4 one is judged by that alone",
        Patch(
            "handlers/http/addresses.py",
            "    yield address\n",
            "    if isinstance(address, IPv4Address) or int(address) < 2 or not tuple(_embedded(address)):\n"
            "        yield address\n",
        ),
        tests=(
            "tests/unit/test_http_addresses.py::test_the_worst_reading_of_an_address_counts_the_outer_one_included",
        ),
    ),
    sabotage(
        "S18.places",
        "places go by host and port, whatever target the job names",
        Patch("handlers/http/handler.py", "target=ctx.run.target)", 'target="")'),
        tests=(SILENT + "test_a_few_silent_paths_of_one_host_starve_neither_its_healthy_ones_nor_another_host",),
    ),
    sabotage(
        "S18.postponed",
        "a poll that gets no place has failed",
        Patch("runtime/attempt.py", "if isinstance(error, Postponed):", "if error is NEVER:"),
        tests=(POLLING + "test_a_target_gets_a_few_requests_at_a_time_and_who_waits_for_a_place_holds_no_seat",),
    ),
    sabotage(
        "S20",
        "every job has a line of its own in the metrics",
        Patch("runtime/stats.py", "if len(self._of) >= self.limit:", "if len(self._of) >= 10**9:"),
        tests=(
            "tests/runtime/test_metrics_bounds.py::test_the_first_two_hundred_have_series_of_their_own_and_the_rest_share_one",
        ),
    ),
)

INWARDS = (
    sabotage(
        "S16",
        "a token is compared with ==",
        Patch(
            "server/auth.py",
            "is_equal = hmac.compare_digest(_NOBODY if record is None else record.hash, mark)",
            "is_equal = record is not None and record.hash == mark",
        ),
        tests=(TOKENS + "test_every_token_is_compared_whether_there_is_such_a_one_or_not",),
    ),
    sabotage(
        "S19",
        "the header with the token is written to the log",
        Patch(
            "server/gateway.py",
            "            identity = await self.tokens.identify(token) if token else None\n",
            "            __import__('logging').getLogger('pollux').warning('asked with %s', token)\n"
            "            identity = await self.tokens.identify(token) if token else None\n",
        ),
        tests=(TOKENS + "test_no_token_that_is_shown_to_the_server_reaches_its_log",),
    ),
    sabotage(
        "S19.events",
        "whoever listens to events is told secrets",
        Patch(
            "server/routes/events.py",
            "    if isinstance(value, str):\n        return hide(value)",
            "    if isinstance(value, str):\n        return value",
        ),
        tests=(
            "tests/acceptance/test_api_events.py::test_what_must_not_be_seen_is_not_seen_by_whoever_listens_either",
        ),
    ),
    sabotage(
        "door.secret",
        "the id of a token is enough",
        Patch("server/auth.py", "if record is None or not is_equal or", "if record is None or"),
        tests=(TOKENS + "test_nobody_learns_why_a_token_is_refused",),
    ),
    sabotage(
        "door.expired",
        "an expired token is good",
        Patch("server/auth.py", " or record.token.is_over(self._now_ms()):", ":"),
        tests=(TOKENS + "test_nobody_learns_why_a_token_is_refused",),
    ),
    sabotage(
        "door.revoked",
        "what was read of the tokens once is believed for ever",
        Patch("server/auth.py", "FRESH_S = 3.0", "FRESH_S = 1e9"),
        tests=(TOKENS + "test_a_request_costs_no_call_of_the_store_and_a_revoked_token_lives_three_seconds",),
    ),
    sabotage(
        "door.back",
        "a token that was taken back returns when its last use is written down",
        Patch("app/operations/tokens.py", "value, revision=record.revision)", "value)"),
        tests=(TOKENS + "test_when_a_token_was_used_is_known_to_the_hour_and_a_revoked_one_does_not_come_back",),
    ),
    sabotage(
        "door.host",
        "whatever name it is called by, it answers",
        Patch("server/gateway.py", 'if not self._hosts.knows(host, server[0] if server else ""):', "if False:"),
        tests=(SECURITY + "test_a_name_that_is_not_ours_is_refused_before_anything_else",),
    ),
    sabotage(
        "door.role",
        "a route's role is not looked at",
        Patch("server/routing.py", "if self.identity.role < role:", "if False:"),
        tests=(TOKENS + "test_a_token_lets_in_as_its_role_and_no_further",),
    ),
    sabotage(
        "door.page",
        "a page of another site may change things",
        Patch("server/gateway.py", 'return site not in {"same-origin", "none"}', "return False"),
        tests=(SECURITY + "test_a_page_of_another_site_changes_nothing_but_may_be_answered",),
    ),
    sabotage(
        "door.proxy",
        "anybody's forwarded headers are believed",
        Patch("server/gateway.py", " or not self._proxies.has(client[0]):", ":"),
        Patch("server/gateway.py", "if self._proxies is None or client is None", "if client is None"),
        Patch(
            "server/gateway.py",
            'self._proxies.client_of(client[0], head[b"x-forwarded-for"])',
            'head[b"x-forwarded-for"]',
        ),
        tests=(SECURITY + "test_forwarded_headers_are_believed_from_a_named_proxy_alone",),
    ),
    sabotage(
        "door.clear",
        "it listens beyond the machine without encryption",
        Patch("server/sockets.py", "if is_loopback(host) or has_tls or behind_proxy:", "if True:"),
        tests=(LISTENING + "test_beyond_this_machine_nothing_listens_in_the_clear",),
    ),
    sabotage(
        "door.socket",
        "everybody on the machine may open the socket",
        Patch("server/sockets.py", "made.chmod(0o600)", "made.chmod(0o666)"),
        tests=(LISTENING + "test_whoever_can_open_the_socket_is_an_admin_under_their_own_name",),
    ),
    sabotage(
        "door.heir",
        "of two who take the socket over at once one believes for ever that it has it",
        Patch(
            "server/server.py", "if self.socket is not None and self.socket.is_there():", "if self.socket is not None:"
        ),
        tests=(LISTENING + "test_a_socket_that_somebody_tidied_away_is_there_again",),
    ),
    sabotage(
        "door.slow",
        "a head may take as long as it likes",
        Patch("server/connections.py", "if is_due and took > self.registry.limits.head_s", "if False"),
        tests=(LIMITS + "test_a_head_that_trickles_is_given_up_however_often_a_byte_comes",),
    ),
    sabotage(
        "door.rate",
        "a token may ask as often as it likes",
        Patch("server/gateway.py", "if self._rates is not None and identity.budget:", "if False:"),
        tests=(LIMITS + "test_a_token_that_asks_too_often_is_told_when_to_come_again",),
    ),
    sabotage(
        "door.batch_size",
        "nobody makes room when all places are taken",
        Patch("server/connections.py", "            if connection.is_silent():\n", "            if False:\n"),
        tests=(LIMITS + "test_when_all_places_are_taken_the_longest_silent_makes_room",),
    ),
    *(
        sabotage(
            f"audit.chain-{store}",
            "a line of the audit log is not held against its hash",
            Patch("store/check_report.py", "elif chained(line, before=self._chain) != line.chain:", "elif False:"),
            tests=(EDITED.format(store),),
        )
        for store in REAL
    ),
    sabotage(
        "audit.who",
        "a change by the API is on record as the node's own",
        Patch("server/routing.py", "app.operations.as_actor(identity.name))", "app.operations)"),
        tests=(AUDITED + "test_every_change_by_a_route_is_one_line_with_who_what_and_how",),
    ),
    sabotage(
        "audit.load",
        "what is loaded from a dump is on no record",
        Patch("app/operations/storage.py", "        await self._audit.record_loaded(records, new)\n", ""),
        tests=(AUDITED + "test_what_a_command_loads_is_on_record_as_well",),
    ),
    *(
        sabotage(
            f"moved.writes-{store}",
            "whoever has a store open goes on writing to it after it was moved away",
            Patch("store/handle.py", "        self._moved_url = url\n", "        self._moved_url = None\n"),
            tests=(
                SEALED + f"test_every_verb_that_changes_something_is_refused_by_an_app_that_has_it_open[{store}]",
                SEALED + f"test_a_living_node_answers_changes_with_409_and_says_what_has_become_of_its_store[{store}]",
            ),
        )
        for store in REAL
    ),
    sabotage(
        "moved.halves",
        "a move says that a store is sealed before anything stops its workers",
        Patch(
            "store/move_marks.py",
            "    await store.put_notes([mark_put(MOVED_TO, mark), _drain_put(mark), NotePut(SEAL, value=True)])\n"
            "    await store.wake()\n    for",
            "    await store.put_notes([mark_put(MOVED_TO, mark)])\n"
            "    await store.put_notes([_drain_put(mark), NotePut(SEAL, value=True)])\n    await store.wake()\n    for",
        ),
        tests=(CUT_OFF + "test_killed_at_any_call_whoever_hears_of_the_move_claims_nothing[after the call]",),
    ),
    sabotage(
        "moved.leased",
        "a move that goes on copies what living nodes still run",
        Patch("app/move.py", "            await self._let_end(wait_ms)\n", ""),
        tests=(CUT_OFF + "test_what_a_living_node_runs_ends_before_a_move_goes_on",),
    ),
    sabotage(
        "moved.leads",
        "a leader plans on where its store is being moved",
        Patch(
            "app/watchers.py", "            await self.runtime.leader.yield_term(self._sealed)\n", "            pass\n"
        ),
        tests=(CUT_OFF + "test_a_leader_that_the_move_left_its_term_gives_it_up",),
    ),
)
