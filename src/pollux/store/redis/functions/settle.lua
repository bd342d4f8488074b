-- Record the ends of attempts.  An item is {run, token, verdict, outcome or false, progress, follow-ups, notes}, a
-- verdict {kind, at or reason or "", failed, clears, sole}, an outcome {started, ended, error, result or false,
-- changed as true, false or "", fingerprint, crashed, error for `tried`, error with its traceback}.  Of a run that is done
-- `true` is verdict enough, and what would be empty at an end is left out.  Answers true if all were accepted.
local call, text = op.call, op.text
local DONE = { "done", "", false, false, false }

-- the token that settled a run stays with it; a run that was taken back has none
local function refused(run, token)
  if not run or token == "" then
    return "lost"
  end
  if (run.st ~= "leased" and run.tok == token) or run.settled == token then
    return "already"
  end
  return "lost"
end

-- Of what the schedule fired: what a person asked for is theirs to revive or drop.  They are history from now on.
local function take_dead_letters(job)
  local deaths = 0
  for _, place in ipairs(call("ZRANGE", writes.flush(runs.history_key(job, "dead")), 0, -1)) do
    local run = runs.read(runs.id_by_end(place))
    if run and (run.cause or "schedule") == "schedule" then
      deaths = deaths + (run.deaths or 1)
      runs.drop_from_history(run)
      run.st = "done"
      runs.add_to_history(run)
    end
  end
  return deaths
end

local function changed_of(outcome)
  local changed = outcome[5]
  if changed == "" then
    return nil
  end
  return changed
end

local function end_of(run, state, outcome, failed, why)
  local started, ended, changed, fingerprint = op.now, op.now, cjson.null, ""
  if outcome then
    started, ended, fingerprint, changed = outcome[1], outcome[2], outcome[6] or "", changed_of(outcome)
    if changed == nil then
      changed = cjson.null
    end
  end
  return { run.id, run.job, state, runs.cause_of(run), run.due, ended, math.max(0, ended - started), failed,
    changed, fingerprint, why, run.gated or false, outcome and true or false }
end

-- what an attempt leaves behind, and nothing of the one before
local function leave_traces(run, outcome, failed, why)
  run.beg, run.res, run.chg = nil, nil, nil
  run.failed, run.err = failed or nil, why ~= "" and why or nil
  if outcome then
    if outcome[9] and outcome[3] ~= "" then
      run.err = outcome[9]
    end
    run.beg, run.res, run.chg = outcome[1], outcome[4] or nil, changed_of(outcome)
    if outcome[7] then
      run.crash = (run.crash or 0) + 1
    end
  end
end

local function finish_by(run, verdict, outcome)
  local kind, reason = verdict[1], verdict[2]
  local why, failed, deaths = outcome and outcome[3] or "", false, 1
  if kind == "done" then
    failed = verdict[3]
    if verdict[4] then
      take_dead_letters(run.job)
    end
  elseif kind == "dead" then
    failed, why = true, why ~= "" and why or reason
    if verdict[5] then
      deaths = deaths + take_dead_letters(run.job)
    end
  else
    run.cancel = reason ~= "" and reason or (run.cancel or "cancelled")
  end
  leave_traces(run, outcome, failed, why)
  run.deaths = deaths > 1 and deaths or nil
  runs.finish(run, kind, outcome and outcome[2] or op.now)
  feed.add_end(run, end_of(run, kind, outcome, failed, kind == "cancelled" and run.cancel or why))
end

local function retry(run, at, outcome)
  local why = outcome and outcome[3] or ""
  local state = run.gated and "held" or "ready"
  local started, ended = op.now, op.now
  if outcome then
    started, ended = outcome[1], outcome[2]
  end
  runs.put_back(run, state, at)
  leave_traces(run, outcome, true, why)
  run.cancel, run.fin, run.att, run.vis = nil, ended, (run.att or 0) + 1, at
  run.why = run.gated and op.args.at_the_gate or nil
  runs.add_tried(run, "[" .. text(run.fence or 0) .. "," .. text(started) .. "," .. text(ended) .. ","
    .. (outcome and outcome[8] or '""') .. "]")
  feed.add_end(run, end_of(run, state, outcome, true, why))
end

local function hand_back(run, verdict, outcome)
  run.settled = run.tok
  if verdict[1] == "retry" then
    retry(run, verdict[2], outcome)
  elseif verdict[1] == "back" then
    runs.put_back(run, "ready", math.max(op.now, verdict[2]))
    feed.add_end(run, end_of(run, "ready", false, false, ""))
  else
    runs.put_back(run, "held")
    run.why = verdict[2]
    feed.add_end(run, end_of(run, "held", false, false, ""))
  end
  if run.st == "held" then
    feed.add_arrived(run)
  end
end

local function is_final(verdict)
  return verdict[1] == "done" or verdict[1] == "dead" or verdict[1] == "cancelled"
end

-- nothing is tried again that was asked to stop or whose job is deleted
local function final(run, verdict)
  if is_final(verdict) then
    return verdict
  end
  if run.cancel then
    return { "cancelled", run.cancel }
  end
  return jobs.exists(run.job) and verdict or { "cancelled", jobs.GONE }
end

local function settle(item, written)
  local id, token, verdict, outcome, progress, follow_ups, puts = unpack(item, 1, 7)
  local run = runs.read(id)
  if not run or run.st ~= "leased" or run.tok ~= token then
    return refused(run, token)
  end
  if progress and progress ~= "" then
    run.prog = progress
  end
  verdict = final(run, verdict == true and DONE or verdict)
  if is_final(verdict) then
    finish_by(run, verdict, outcome)
  else
    hand_back(run, verdict, outcome)
  end
  if follow_ups then
    for _, row in ipairs(follow_ups) do
      runs.accept(row)
    end
    notes.write(puts, written)
  end
  return "ok"
end

register.write("settle", "allow-oom", function()
  streams.promote()
  local items, answers, accepted, written = op.args.items, {}, 0, {}
  for n, item in ipairs(items) do
    answers[n] = settle(item, written)
    accepted = accepted + (answers[n] == "ok" and 1 or 0)
  end
  feed.add_gathered()
  notes.add_changed(written)
  return accepted == #items or answers
end)
