"""Changes by hand, for behaviours that no mutant by rule turns red.

Each is a handful of patches of one file, told in words.
"""

from __future__ import annotations

from tests.sabotage.copy import Patch

_HANDLE = "store/handle.py"
_BACKEND = "store/memory/store.py"
_STATE = "store/memory/state.py"
_RUNS = "store/memory/runs.py"
_JOBS = "store/memory/jobs.py"
_PLAN = "store/memory/plan.py"
_LEASES = "store/memory/leases.py"
_RECORDS = "store/memory/records.py"
_LIMITS = "store/limits.py"

SUBTLE: dict[str, tuple[Patch, ...]] = {
    # versions
    "some runs that move along stand in no line": (
        Patch(
            _STATE,
            "        if lease_ms is None:\n            self.stand(run)\n",
            "        if lease_ms is None:\n"
            "            self.stand(run) if run.job_id in ('j1', 'j3') else self.live.update({run.id: run})\n",
        ),
    ),
    # the handle
    "a handle takes any version": (
        Patch(_HANDLE, "self.backend.of_version(check_version(number))", "self.backend.of_version(number)"),
    ),
    "a handle of another version is of the one before": (
        Patch(_HANDLE, "self.backend.of_version(check_version(number))", "self.backend.of_version(number - 1 or 1)"),
    ),
    "opening begins with nothing": (
        Patch(
            _BACKEND,
            "        self._opened.is_open = True\n",
            "        self._opened.is_open = True\n        self._shared = SharedState()\n"
            "        self.state = self._shared.state(self.version)\n",
        ),
    ),
    "a sound store complains": (
        Patch(_BACKEND, "        return ()\n\n    def job", '        return ("odd; mend it",)\n\n    def job'),
    ),
    "closing twice is refused": (
        Patch(
            _BACKEND,
            "        self._opened.is_open = False\n",
            '        if not self.is_open:\n            raise StoreError("closed already")\n'
            "        self._opened.is_open = False\n",
        ),
    ),
    "a twin is the store itself": (Patch(_HANDLE, "return self._over(self.backend.twin())", "return self"),),
    "a claim waits its time out, whatever is there": (
        Patch(
            _HANDLE,
            "        began = self.clock.mono_ms()\n        with backend.listen",
            "        began = self.clock.mono_ms()\n"
            '        await self.clock.wait(__import__("asyncio").Event(), wait_ms)\n'
            "        with backend.listen",
        ),
    ),
    "a wait goes on behind the back of who cancelled it": (
        Patch(
            _HANDLE,
            "self._wait(look, has_answer, wait_ms, now_ms, request), wait_ms)",
            '__import__("asyncio").shield(self._wait(look, has_answer, wait_ms, now_ms, request)), wait_ms)',
        ),
    ),
    "settle answers ok to everybody, a moment later": (
        Patch(
            _BACKEND,
            "        return self._do(settle, checked_settlements(settlements), self._now(now_ms))",
            '        await __import__("asyncio").sleep(0)\n'
            "        self._do(settle, checked_settlements(settlements), self._now(now_ms))\n"
            "        return [Answer.OK for _ in settlements]",
        ),
    ),
    "settlements are checked one by one, each when it is settled": (
        Patch(
            _BACKEND,
            "return self._do(settle, checked_settlements(settlements), self._now(now_ms))",
            "return [self._do(settle, checked_settlements([each]), self._now(now_ms))[0] for each in settlements]",
        ),
    ),
    # runs
    "a run loses its target on the way in": (
        Patch(
            _RUNS, "    run = state.admit(run, now_ms)\n", '    run = state.admit(replace(run, target=""), now_ms)\n'
        ),
    ),
    "after a refusal the rest of the batch is refused": (
        Patch(
            _RUNS,
            "answers.append(accept(state, run, told, now_ms))",
            "is_well = all(answer.answer is Answer.OK for answer in answers)\n"
            "            stale = RunAnswer(Answer.STALE, run.id)\n"
            "            answers.append(accept(state, run, told, now_ms) if is_well else stale)",
        ),
    ),
    "keys are compared in lower case": (
        Patch(
            _RUNS,
            "run.key in state.keys:\n        return RunAnswer(Answer.CONFLICT, run.id, state.keys[run.key])",
            "run.key.lower() in state.keys:\n        return RunAnswer(Answer.CONFLICT, run.id, run.key)",
        ),
    ),
    "runs are got in the order of their ids": (
        Patch(
            _HANDLE,
            "decoder(found[run_id], run_id) if run_id in found else None for run_id in ids]",
            "decoder(found[run_id], run_id) if run_id in found else None for run_id in sorted(ids)]",
        ),
    ),
    "cancelling a job deletes it": (
        Patch(
            _RUNS,
            "    if job_id is not None:\n        run_ids = [",
            "    if job_id is not None:\n        state.drop_job(job_id)\n        run_ids = [",
        ),
    ),
    "there is always a job": (
        Patch(
            _RUNS, "jobs=sum(each.job_count for each in counted)", "jobs=sum(each.job_count for each in counted) or 1"
        ),
    ),
    "an empty batch of runs is refused": (
        Patch(
            _LIMITS,
            '    check_batch(runs, "runs", at_most=at_most)\n',
            '    check_batch(runs, "runs", at_most=at_most)\n    if not runs:\n        raise InvalidInput("no runs")\n',
        ),
    ),
    "a list begins anew after a cursor that nobody answered": (
        Patch(
            "store/filters.py",
            '    raise InvalidInput(f"{after!r} is no place in a list of runs", '
            'cure="use what the page before answered as next")',
            "    return None, None",
        ),
    ),
    # what is refused, and what is kept
    "an empty payload is a missing one": (
        Patch(
            _LIMITS,
            "    if run.payload is None:\n        return run\n",
            "    if not run.payload:\n        return replace(run, payload=None)\n",
        ),
    ),
    "a zero character is lost": (
        Patch(_LIMITS, "    return _decode(data)", '    return _decode(data.replace(b"\\\\u0000", b""))'),
    ),
    # delivery
    "what is claimed comes in reverse": (
        Patch(_LEASES, "    if runs:\n        _note_claim(", "    runs.reverse()\n    if runs:\n        _note_claim("),
    ),
    "a held run stands in the line, too": (
        Patch(
            _STATE,
            "        if run.state is READY:\n            self.ready += 1",
            "        if run:\n            self.ready += 1",
        ),
        Patch(_STATE, "            and run.state is READY\n", "            and run.state is not LEASED\n"),
    ),
    # jobs and plans
    "jobs are got in the order of their ids": (
        Patch(
            _HANDLE,
            "decoder.job(found[job_id]) if job_id in found else None for job_id in ids]",
            "decoder.job(found[job_id]) if job_id in found else None for job_id in sorted(ids)]",
        ),
    ),
    "when nothing is due, jobs without a due are": (
        Patch(
            _JOBS,
            "job_of(job_id, state.jobs[job_id])) for job_id in found]",
            "job_of(job_id, state.jobs[job_id])) for job_id in found] or [\n"
            "        (job_id, job_of(job_id, row)) for job_id, row in state.jobs.items() if row.next_due_ms is None]",
        ),
    ),
    "a job goes on after its last firing": (
        Patch(_PLAN, "row, firing.next_due_ms, run.due_ms)", "row, firing.next_due_ms or run.due_ms + 1, run.due_ms)"),
    ),
    "the feed does not know the time": (
        Patch(_PLAN, "for entry_id, entry in items), now_ms)", "for entry_id, entry in items), 0)"),
    ),
    "a job runs elsewhere than it says": (
        Patch(
            "store/memory/rows.py",
            "        _definition(row),\n        id=job_id,\n",
            "        (job := _definition(row)),\n        id=job_id,\n"
            '        isolate=type(job.isolate)("process" if job.isolate.value == "never" else "never"),\n',
        ),
    ),
    # records
    "a dump begins anew after a cursor that nobody answered": (
        Patch(
            "store/dump_format.py",
            '    raise InvalidInput(f"{after!r} is no place in a dump", '
            'cure="use what the page before answered as next")',
            '    return "", ""',
        ),
    ),
    "a dump empties the feed": (
        Patch(_RECORDS, "    records = _records(", "    state.entries.clear()\n    records = _records("),
    ),
    "a dump has values in it, not plain JSON": (Patch(_HANDLE, "msgspec.to_builtins(record)", "record"),),
    "pruning takes every job for spent": (
        Patch(_RECORDS, "        for job_id in state.spent\n", "        for job_id in state.jobs\n"),
        Patch(_RECORDS, "        if _ended_before(state.jobs[job_id], before_ms)\n        and", "        if"),
    ),
}
