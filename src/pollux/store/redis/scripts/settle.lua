#!lua flags=allow-oom
-- Record the ends of attempts.  An item is {run, token, verdict, outcome or false, follow-ups, notes, progress}:
-- a verdict {kind, at or reason or "", failed, clears, sole}, an outcome {started, ended, error, result or false,
-- changed as "1", "0" or "", fingerprint, crashed, error to keep in `tried`}.
promote()
local ends, arrived, written = {}, {}, {}

-- the token that settled a run stays with it; a run that was taken back has none
local function refused(run, id, token)
  if not run or token == "" then
    return "lost"
  end
  if (run.st ~= "leased" and run.tok == token) or call("HGET", run_key(id), "settled") == token then
    return "already"
  end
  return "lost"
end

local function take_dead_letters(job)
  local deaths = 0
  for _, place in ipairs(call("ZRANGE", shelf_key(job, true), 0, -1)) do
    local id = place_id(place)
    deaths = deaths + tonumber(call("HGET", run_key(id), "deaths") or 1)
    forget(id)
  end
  return deaths
end

local function changed_of(outcome)
  if not outcome or outcome[5] == "" then
    return cjson.null
  end
  return outcome[5] == "1"
end

local function end_of(run, state, outcome, failed, why)
  local started, ended = now, now
  if outcome then
    started, ended = outcome[1], outcome[2]
  end
  return { run.id, run.job, state, run.cause, run.due, ended, math.max(0, ended - started), failed,
    changed_of(outcome), outcome and outcome[6] or "", why, run.gated, outcome and true or false }
end

-- what an attempt leaves behind, as fields
local function traces(run, outcome, failed, why)
  local fields = {}
  local function put(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if outcome then
    put("beg", outcome[1])
    if outcome[4] then
      put("res", outcome[4])
    end
    if outcome[5] ~= "" then
      put("chg", outcome[5])
    end
    if outcome[7] then
      put("crash", run.crash + 1)
    end
  end
  if failed then
    put("failed", "1")
  end
  if why ~= "" then
    put("err", why)
  end
  return fields, put
end

local function finish_by(run, verdict, outcome)
  local kind, reason = verdict[1], verdict[2]
  local why, failed, cancel, deaths = outcome and outcome[3] or "", false, run.cancel, 1
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
    cancel = reason ~= "" and reason or (run.cancel ~= "" and run.cancel or "cancelled")
  end
  local fields, put = traces(run, outcome, failed, why)
  put("deaths", deaths)
  if cancel ~= "" then
    put("cancel", cancel)
  end
  local is_unchanged = kind == "done" and not failed and outcome and outcome[5] == "0"
  finish(run, kind, outcome and outcome[2] or now, is_unchanged, ATTEMPT, fields)
  ends[#ends + 1] = end_of(run, kind, outcome, failed, kind == "cancelled" and cancel or why)
end

local function retry(run, at, outcome)
  local key, why = run_key(run.id), outcome and outcome[3] or ""
  local state = run.gated and "held" or "ready"
  local started, ended = now, now
  if outcome then
    started, ended = outcome[1], outcome[2]
  end
  put_back(run, state, at)
  call("HDEL", key, "beg", "failed", "chg", "err", "res", "cancel")
  local fields, put = traces(run, outcome, true, why)
  put("fin", ended)
  put("att", run.att + 1)
  put("vis", at)
  if run.gated then
    put("why", A.at_the_gate)
  end
  call("HSET", key, unpack(fields))
  add_tried(run.id, "[" .. text(run.fence) .. "," .. text(started) .. "," .. text(ended) .. ","
    .. (outcome and outcome[8] or '""') .. "]")
  ends[#ends + 1] = end_of(run, state, outcome, true, why)
end

local function hand_back(run, verdict, outcome)
  call("HSET", run_key(run.id), "settled", run.tok)
  if verdict[1] == "retry" then
    retry(run, verdict[2], outcome)
  elseif verdict[1] == "back" then
    put_back(run, "ready", math.max(now, verdict[2]))
    ends[#ends + 1] = end_of(run, "ready", false, false, "")
  else
    put_back(run, "held")
    call("HSET", run_key(run.id), "why", verdict[2])
    ends[#ends + 1] = end_of(run, "held", false, false, "")
  end
  if run.st == "held" then
    arrived[#arrived + 1] = run.id
  end
end

-- nothing is tried again that was asked to stop or whose job is gone
local function final(run, verdict)
  if verdict[1] == "done" or verdict[1] == "dead" or verdict[1] == "cancelled" then
    return verdict
  end
  if run.cancel ~= "" then
    return { "cancelled", run.cancel }
  end
  return has_job(run.job) and verdict or { "cancelled", JOB_GONE }
end

local function settle(item)
  local id, token, verdict, outcome, follow_ups, notes, progress = unpack(item, 1, 7)
  local run = read_run(id)
  if not run or run.st ~= "leased" or run.tok ~= token then
    return refused(run, id, token)
  end
  if progress ~= "" then
    call("HSET", run_key(id), "prog", progress)
  end
  verdict = final(run, verdict)
  if verdict[1] == "done" or verdict[1] == "dead" or verdict[1] == "cancelled" then
    finish_by(run, verdict, outcome)
  else
    hand_back(run, verdict, outcome)
  end
  for _, row in ipairs(follow_ups) do
    accept(row, arrived)
  end
  write_notes(notes, written)
  return "ok"
end

local answers = {}
for n, item in ipairs(A.items) do
  answers[n] = settle(item)
end
tell_ends(ends)
tell_arrived(arrived)
tell_notes(written)
return finished_call(answers)
