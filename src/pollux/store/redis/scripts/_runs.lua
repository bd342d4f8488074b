-- Runs and their indexes.  The hash is the truth: `s` is the state, packed, and is read and written as a whole; `b` is the
-- immutable input (payload, group, target), which no script reads.  A live run is held, in the queue of
-- its priority, or leased; finished, it is in a history.  All verbs move runs by `admit`, `put_back`, `finish` and
-- `forget` alone.
local TRIED_MAX = 5

local function run_key(id)
  return PREFIX .. "run:" .. id
end

local function live_key(job)
  return PREFIX .. "live:" .. job
end

-- kind: "history", "failed" or "dead"
local function history_key(job, kind)
  return PREFIX .. kind .. ":" .. job
end

local function history_kind(run)
  return run.st == "dead" and "dead" or (run.failed and "failed" or "history")
end

-- how many finished runs a job has is told under its id, and how many of them failed under what no id can be
local function counter_name(job, kind)
  return kind == "failed" and "failed " .. job or job
end

local function place_id(place)
  return string.sub(place, 30)
end

-- runs as they stand by now, false for none; those that are touched are written at the end

local runs, touched, bodies, packed = {}, {}, {}, {}
local spoilt = {} -- of which something was left out when it was read, and what; until it is written again
local as_made = {} -- how plain ones stand, without their place in the order, in their maker's own words: see plain.py

-- what a run says of itself, and of which kind that is
local KINDS = {
  vis = "number", cause = "string", key = "string", pr = "number", gated = "boolean", why = "string", att = "number",
  loss = "number", crash = "number", fence = "number", tok = "string", own = "string", til = "number", len = "number",
  cancel = "string", beg = "number", fin = "number", failed = "boolean", chg = "boolean", err = "string", res = "string",
  deaths = "number", prog = "string", tried = "string", v = "number", n = "number", q = "number", pq = "number",
  ent = "string", settled = "string",
}

local function is_of(kind, value)
  return type(value) == kind and (kind ~= "number" or (value % 1 == 0 and math.abs(value) < 1e15))
end

-- what it must say to stand where it does: without it nobody could take it away from there
local function complete(run)
  if run.pr and not QUEUE[run.pr] then
    run.pr, spoilt[run.id] = nil, "pr"
  end
  run.pr = run.pr or 2
  run.vis = run.vis or run.due
  if run.st == "ready" then
    run.q = run.q or 0
  elseif run.st == "leased" then
    run.til, run.len, run.own = run.til or 0, run.len or 0, run.own or ""
  elseif run.st ~= "held" then
    run.fin, run.pq = run.fin or 0, run.pq or 0
  end
end

-- The one gate: what is no run of ours (somebody wrote there by hand) is none, and what it says that no run can say is not
-- said.  Nothing behind it asks again; a claim gives no such run to anybody.
local function unpacked(id, state)
  local is_packed, run = pcall(cmsgpack.unpack, state)
  if not is_packed or type(run) ~= "table" or not is_of("string", run.st) or not is_of("string", run.job)
    or not is_of("number", run.due) then
    return false
  end
  run.q, run.pq = tonumber(run.q), tonumber(run.pq) -- plain calls write them as texts
  if run.z then
    run.n, run.z = run.q, nil
  end
  for field, value in pairs(run) do
    local kind = KINDS[field]
    if kind and not is_of(kind, value) then
      run[field] = nil
      spoilt[id] = (spoilt[id] and spoilt[id] .. ", " or "") .. field
    end
  end
  run.id = id
  complete(run)
  return run
end

local function read_run(id)
  local run = runs[id]
  if run == nil then
    local state = call("HGET", run_key(id), "s")
    run = state and unpacked(id, state) or false
    runs[id] = run
  end
  return run or nil
end

local function has_run(id)
  local run = runs[id]
  if run == nil then
    return call("EXISTS", run_key(id)) == 1
  end
  return run ~= false
end

-- one question for all: mostly none of them is there
local function expect_new(ids)
  local keys = {}
  for n, id in ipairs(ids) do
    keys[n] = run_key(id)
  end
  if #keys > 0 and call("EXISTS", unpack(keys)) == 0 then
    for _, id in ipairs(ids) do
      runs[id] = false
    end
  end
end

local function touch(run)
  touched[run.id], as_made[run.id], spoilt[run.id] = run, nil, nil
end

-- goes with touched
writers[#writers + 1] = {
  check = function() end, -- it was read, or there is none
  write = function()
    local gone = {}
    for id, run in pairs(touched) do
      local key = run_key(id)
      if not run then
        gone[#gone + 1] = key
      else
        local state
        if as_made[id] then
          state = as_made[id] .. pad_seq(run.q)
        else
          run.id, run.pr = nil, run.pr ~= 2 and run.pr or nil
          state = cmsgpack.pack(run)
          run.id, run.pr = id, run.pr or 2
        end
        packed[id] = state
        if bodies[id] then
          call("HSET", key, "s", state, "b", bodies[id])
        else
          call("HSET", key, "s", state)
        end
      end
    end
    if #gone > 0 then
      call("DEL", unpack(gone))
    end
    touched = {}
  end,
}

-- is it leased by the claim with that token, whatever the delivery?
local function is_taken_by(run, token)
  return run.st == "leased" and run.tok and string.match(run.tok, "^(.*):%-?%d+$") == token
end

local function is_live(run)
  return run.st == "held" or run.st == "ready" or run.st == "leased"
end

-- the moves

local ready_change = 0 -- how many more runs stand in the lines than before this call

local function stand_ready(run, visible)
  local q = next_seq()
  ready_change = ready_change + 1
  run.st, run.vis, run.q = "ready", visible, q
  put("zset", QUEUE[run.pr], pad_seq(q) .. run.id, visible)
  if visible <= now then
    coming[run.pr] = coming[run.pr] + 1
  end
  rings.runs = true
end

local function stand_held(run)
  run.st = "held"
  put("zset", HELD, pad(run.due) .. run.id, 0)
end

local function stand(run, state, visible)
  enter(run.v or DEFAULT)
  if state == "ready" then
    stand_ready(run, visible)
  else
    stand_held(run)
  end
end

local function step_out(run)
  enter(run.v or DEFAULT)
  if run.st == "leased" then
    drop("zset", LEASES, run.id)
    spend(run.pr, run.ent)
  elseif run.st == "held" then
    drop("zset", HELD, pad(run.due) .. run.id)
  else
    drop("zset", QUEUE[run.pr], pad_seq(run.q) .. run.id)
    ready_change = ready_change - 1
    if run.vis <= now then
      leaving[run.pr] = leaving[run.pr] + 1
    end
  end
  run.own, run.til, run.len, run.ent, run.why, run.q = nil, nil, nil, nil, nil, nil
end

-- a run as it is to stand, `st` ready or held
local function admit(run)
  local id = run.id
  local version = version_of(run.job) or run.v or DEFAULT
  run.v = version ~= DEFAULT and version or nil
  run.n = next_seq()
  if run.key then
    put("hash", UNIQUE, run.key, id)
  end
  local place = pad(run.due) .. id
  put("zset", LIVE, place, 0)
  put("zset", live_key(run.job), place, 0)
  stand(run, run.st, run.vis)
  runs[id], touched[id] = run, run
end

-- a row is {id, how it is to stand, body or false}, and of a plain run the same as it is to be written
local function admit_row(row)
  local run = row[2]
  local version = run.v or DEFAULT
  run.id = row[1]
  run.pr = run.pr or 2
  bodies[run.id] = row[3]
  admit(run)
  if run.st == "ready" and (run.v or DEFAULT) == version then
    as_made[run.id] = row[4]
  end
end

local function put_back(run, state, visible)
  step_out(run)
  stand(run, state, visible)
  touch(run)
end

-- finished runs stand by (when they finished, in which order)
local counter_changes = {}

local function add_to_history(run, is_unchanged)
  local kind = history_kind(run)
  local place = pad(run.fin) .. pad_seq(run.pq) .. run.id
  put("zset", kind == "dead" and FINISHED_DEAD or (is_unchanged and FINISHED_UNCHANGED or FINISHED_PLAIN), place, 0)
  put("zset", history_key(run.job, kind), place, 0)
  if kind ~= "dead" then
    local name = counter_name(run.job, kind)
    counter_changes[name] = (counter_changes[name] or 0) + 1
  end
  touch(run)
end

local function shelve(run, is_unchanged)
  run.pq = next_seq()
  add_to_history(run, is_unchanged)
end

-- goes with counter_changes
writers[#writers + 1] = {
  check = function()
    if next(counter_changes) then
      check(JOB_COUNTERS, "zset")
    end
  end,
  write = function()
    for name, change in pairs(counter_changes) do
      if call("ZINCRBY", JOB_COUNTERS, change, name) == "0" then
        call("ZREM", JOB_COUNTERS, name)
      end
    end
    counter_changes = {}
  end,
}

-- a live run ends
local function finish(run, state, finished, is_unchanged)
  step_out(run)
  if run.key and field_of(UNIQUE, run.key) == run.id then
    drop("hash", UNIQUE, run.key)
  end
  local place = pad(run.due) .. run.id
  drop("zset", LIVE, place)
  drop("zset", live_key(run.job), place)
  run.st, run.fin, run.n = state, finished, nil
  shelve(run, is_unchanged)
end

-- take a finished run out of its history
local function unshelve(run)
  local place = pad(run.fin) .. pad_seq(run.pq) .. run.id
  local kind = history_kind(run)
  if kind == "dead" then
    drop("zset", FINISHED_DEAD, place)
  else
    local is_unchanged = run.st == "done" and not run.failed and run.chg == false
    drop("zset", is_unchanged and FINISHED_UNCHANGED or FINISHED_PLAIN, place)
    local name = counter_name(run.job, kind)
    counter_changes[name] = (counter_changes[name] or 0) - 1
  end
  drop("zset", history_key(run.job, kind), place)
end

local function forget(run)
  unshelve(run)
  runs[run.id], touched[run.id] = false, false
end

-- the leader reads no other
local CAUSES = { schedule = true, forced = true, enqueued = true }

local function cause_of(run)
  return CAUSES[run.cause] and run.cause or "schedule"
end

-- the end of an attempt in which no handler code ran to its end
local function idle_end(run, state, failed, why)
  return { run.id, run.job, state, cause_of(run), run.due, now, 0, failed, cjson.null, "", why,
    run.gated or false, false }
end

local function cancel_waiting(run, reason)
  run.cancel = reason ~= "" and reason or "cancelled"
  finish(run, "cancelled", now, false)
  return idle_end(run, "cancelled", false, run.cancel)
end

-- leave a request beside the lease; false if there is one already
local function ask_to_stop(run, reason)
  if run.cancel then
    return false
  end
  run.cancel = reason ~= "" and reason or "cancelled"
  touch(run)
  asked[run.own] = true
  return true
end

-- what the leader is told of a run, where the run is
local function add_end(run, value)
  enter(run.v or DEFAULT)
  ends[#ends + 1] = value
end

local function add_arrived(run)
  enter(run.v or DEFAULT)
  arrived[#arrived + 1] = run.id
end

-- What is noted of a job: {behind which place its runs are left, or false; the last one that is to end, by their coming;
-- why} of one that was deleted, {place, version} of one that was moved.
local function unfinished(id)
  local packed = field_of(UNFINISHED, id)
  local is_packed, left = pcall(cmsgpack.unpack, packed or "")
  local is_ours = is_packed and type(left) == "table" and (not left[1] or is_of("string", left[1]))
    and is_of("number", left[2]) and (not left[3] or is_of("string", left[3]))
  return packed and is_ours and left or nil
end

-- End what waits of a job that is gone, of no more than `limit` runs.  What is left is noted in the same write, so that whoever
-- is cut off leaves nothing that nobody would end.  Answers how many were looked at, and whether there are more.
local function end_waiting(id, upto, after, why, limit)
  local from = after and "(" .. after or "-"
  local places = limit > 0 and call("ZRANGEBYLEX", live_key(id), from, "+", "LIMIT", 0, limit) or {}
  for _, place in ipairs(places) do
    local run = read_run(string.sub(place, 16))
    if run and run.st ~= "leased" and (run.n or 0) <= upto then
      add_end(run, cancel_waiting(run, why))
    end
    after = place
  end
  local is_more = #places == limit and call("ZLEXCOUNT", live_key(id), after and "(" .. after or "-", "+") > 0
  if is_more then
    put("hash", UNFINISHED, id, cmsgpack.pack({ after, upto, why }))
  else
    drop("hash", UNFINISHED, id)
  end
  return #places, is_more
end

-- make a run live, if nothing stands against it; that one came to the gate is told
local function accept(row)
  local id, run = row[1], row[2]
  if has_run(id) then
    return "already", ""
  end
  if not has_job(run.job) then
    return "stale", ""
  end
  if run.key then
    local holder = field_of(UNIQUE, run.key)
    if holder then
      return "conflict", holder
    end
  end
  admit_row(row)
  if run.st == "held" then
    add_arrived(run)
  end
  return "ok", ""
end

-- attempts in vain are kept as lines of JSON, the latest few
local function add_tried(run, line)
  local lines = {}
  for each in string.gmatch(run.tried or "", "[^\n]+") do
    lines[#lines + 1] = each
  end
  lines[#lines + 1] = line
  run.tried = table.concat(lines, "\n", math.max(1, #lines - TRIED_MAX + 1))
end

local function note_grant(is_first)
  set_count("granted", is_first and now or math.max(count_of("granted"), now))
  set_count("clock", math.max(count_of("clock"), now))
end

-- runs as they go to the caller: id, state, body, and again; no state where there is no run
local function add_parts(parts, ids)
  local n = #parts
  for _, id in ipairs(ids) do
    local row = call("HMGET", run_key(id), "s", "b")
    parts[n + 1], parts[n + 2], parts[n + 3] = id, row[1] or "", row[2] or ""
    n = n + 3
  end
  return parts
end

-- held, ready, leased, dead, feed, ends, jobs of a version, or of all of them; what is dead is so over all
local function counts_of(version)
  local sums, in_others = { 0, 0, 0, 0, 0, 0, 0 }, 0
  for each in pairs(versions_known()) do
    if each ~= DEFAULT then
      in_others = in_others + count_in(each, "jobs")
    end
    if not version or each == version then
      local lines = 0
      for pr = 1, 3 do
        lines = lines + call("ZCARD", key_of(each, "queue:" .. pr))
      end
      local row = { call("ZCARD", key_of(each, "held")), lines, call("ZCARD", key_of(each, "leases")), 0,
        call("XLEN", key_of(each, "feed")), count_in(each, "ends"), each ~= DEFAULT and count_in(each, "jobs") or 0 }
      for n = 1, 7 do
        sums[n] = sums[n] + row[n]
      end
    end
  end
  if not version or version == DEFAULT then
    sums[7] = sums[7] + call("ZCARD", JOBS) - in_others
  end
  sums[4] = call("ZCARD", FINISHED_DEAD)
  return sums
end

local function keep_part()
  parts[here] = {
    streams = STREAM, lines = QUEUE, meta = META, leases = LEASES, held = HELD, due = DUE, feed = FEED,
    bell_runs = BELL_RUNS, bell_feed = BELL_FEED, coming = coming, leaving = leaving, spent = spent,
    ready_change = ready_change, rings = rings, told = told, ends = ends, arrived = arrived,
  }
end

-- From here on the script works in another version: its keys, and what was gathered there so far.
enter = function(version)
  if not parts[here] then
    keep_part()
  end
  if version == here then
    return
  end
  parts[here].ready_change = ready_change
  local part = parts[version]
  local is_new = not part
  if is_new then
    local function name(end_of_it)
      return key_of(version, end_of_it)
    end
    part = {
      streams = { name("jobs:high"), name("jobs:normal"), name("jobs:low") },
      lines = { name("queue:1"), name("queue:2"), name("queue:3") },
      meta = name("meta"), leases = name("leases"), held = name("held"), due = name("due"), feed = name("feed"),
      bell_runs = name("bell:runs"), bell_feed = name("bell:feed"),
      coming = { 0, 0, 0 }, leaving = { 0, 0, 0 }, spent = { {}, {}, {} }, ready_change = 0,
      rings = { runs = false, feed = false }, told = {}, ends = {}, arrived = {},
    }
    parts[version] = part
  end
  here = version
  STREAM, QUEUE, META, LEASES, HELD, DUE = part.streams, part.lines, part.meta, part.leases, part.held, part.due
  QUEUE_1, QUEUE_2, QUEUE_3 = unpack(QUEUE)
  FEED, BELL_RUNS, BELL_FEED = part.feed, part.bell_runs, part.bell_feed
  coming, leaving, spent, ready_change = part.coming, part.leaving, part.spent, part.ready_change
  rings, told, ends, arrived = part.rings, part.told, part.ends, part.arrived
  if is_new and has_promoted then
    promote()
  end
end
