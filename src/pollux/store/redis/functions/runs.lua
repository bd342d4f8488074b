-- Runs and their indexes.  The hash is the truth: `s` is the state, packed, and is read and written as a whole; `b` is the
-- immutable input (payload, group, target), which no function reads.  A live run is held, in the queue of its priority, or
-- leased; finished, it is in a history.  All functions move runs by `admit`, `put_back`, `finish` and `forget` alone.
local runs = {}
local call, text, pad, pad_seq, is_of, DEFAULT = op.call, op.text, op.pad, op.pad_seq, op.is_of, op.DEFAULT
local zadd, hset, zrem, hdel = writes.zadd, writes.hset, writes.zrem, writes.hdel
local field_of, next_seq = writes.field_of, writes.next_seq
local count_of, set_count = writes.count_of, writes.set_count
local TRIED_MAX = 5

function runs.live_key(job)
  return op.keys.live_of .. job
end

-- kind: "history", "failed" or "dead"
function runs.history_key(job, kind)
  return op.keys.prefix .. kind .. ":" .. job
end

function runs.history_kind(run)
  return run.st == "dead" and "dead" or (run.failed and "failed" or "history")
end

-- how many finished runs a job has is counted under its id, and how many of them failed under what no id can be
function runs.counter_name(job, kind)
  return kind == "failed" and "failed " .. job or job
end

-- places of `live` and `held`, and of a history; the id in each of them, and in a place of a queue
function runs.by_due(run)
  return pad(run.due) .. run.id
end

function runs.by_end(run)
  return pad(run.fin) .. pad_seq(run.pq) .. run.id
end

function runs.id_by_due(place)
  return string.sub(place, 16)
end

function runs.id_by_end(place)
  return string.sub(place, 30)
end

function runs.id_in_queue(place)
  return string.sub(place, 15)
end

function runs.is_unchanged(run)
  return run.st == "done" and not run.failed and run.chg == false
end

-- the list of finished runs of its class
function runs.class_key(run)
  if run.st == "dead" then
    return op.keys.finished_dead
  end
  return runs.is_unchanged(run) and op.keys.finished_unchanged or op.keys.finished_plain
end

-- the fields of a state, and their types
local KINDS = {
  vis = "number", cause = "string", key = "string", pr = "number", gated = "boolean", why = "string", att = "number",
  loss = "number", crash = "number", fence = "number", tok = "string", own = "string", til = "number", len = "number",
  cancel = "string", beg = "number", fin = "number", failed = "boolean", chg = "boolean", err = "string", res = "string",
  deaths = "number", prog = "string", tried = "string", v = "number", n = "number", q = "number", pq = "number",
  ent = "string", settled = "string",
}

-- fields without which it could not be removed from its indexes
local function complete(run)
  local pr = run.pr
  if pr and pr ~= 1 and pr ~= 2 and pr ~= 3 then
    run.pr, op.unread_fields[run.id] = nil, "pr"
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

-- The one gate: what is no run of ours (another client wrote there) is none, and a field that no run can have is left out.
-- Nothing behind it asks again; a claim gives no such run to a worker.
function runs.unpacked(id, state)
  local is_packed, run = pcall(cmsgpack.unpack, state)
  if not is_packed or type(run) ~= "table" or not is_of("string", run.st) or not is_of("string", run.job)
    or not is_of("number", run.due) then
    return false
  end
  for field, value in next, run do
    local kind = KINDS[field]
    if kind and (type(value) ~= kind or (kind == "number" and (value % 1 ~= 0 or value >= 1e15 or value <= -1e15))) then
      run[field] = nil
      local before = op.unread_fields[id]
      op.unread_fields[id] = (before and before .. ", " or "") .. field
    end
  end
  run.id = id
  complete(run)
  return run
end

function runs.read(id)
  local run = op.runs[id]
  if run == nil then
    local key = op.keys.run .. id
    local state = redis.pcall("HGET", key, "s")
    if type(state) == "table" then -- an error: asked again, it names the key
      state = call("HGET", key, "s")
    end
    run = state and runs.unpacked(id, state) or false
    op.runs[id] = run
  end
  return run or nil
end

function runs.exists(id)
  local run = op.runs[id]
  if run == nil then
    return call("EXISTS", op.keys.run .. id) == 1
  end
  return run ~= false
end

-- one question for all: mostly none of them is there
function runs.expect_new(ids)
  local keys = {}
  for n, id in ipairs(ids) do
    keys[n] = op.keys.run .. id
  end
  if #keys > 0 and call("EXISTS", unpack(keys)) == 0 then
    for _, id in ipairs(ids) do
      op.runs[id] = false
    end
  end
end

function runs.touch(run)
  op.touched[run.id], op.unread_fields[run.id] = run, nil
end

writes.writers[#writes.writers + 1] = {
  check = function() end, -- it was read, or there is none
  write = function()
    local gone, bodies, packed, beginning = {}, op.bodies, op.packed, op.keys.run
    local set, pack = redis.call, cmsgpack.pack
    for id, run in next, op.touched do
      if not run then
        gone[#gone + 1] = beginning .. id
      else
        local pr = run.pr
        run.id = nil
        if pr == 2 then
          run.pr = nil
        end
        local state = pack(run)
        run.id, run.pr = id, pr
        packed[id] = state
        if bodies[id] then
          set("HSET", beginning .. id, "s", state, "b", bodies[id])
        else
          set("HSET", beginning .. id, "s", state)
        end
      end
    end
    if #gone > 0 then
      call("DEL", unpack(gone))
    end
    op.touched = {}
  end,
}

-- is it leased by the claim with that token, whatever the delivery?
function runs.is_taken_by(run, token)
  return run.st == "leased" and run.tok and string.match(run.tok, "^(.*):%-?%d+$") == token
end

function runs.is_live(run)
  local state = run.st
  return state == "held" or state == "ready" or state == "leased"
end

-- the moves

-- in the version of the run
function runs.stand(run, state, visible)
  op.enter(run.v or DEFAULT)
  local part, here = op.part, op.here
  run.st = state
  if state == "held" then
    zadd(here.held, runs.by_due(run), "0")
    return
  end
  local q = next_seq()
  part.ready_change = part.ready_change + 1
  run.vis, run.q = visible, q
  zadd(here.queues[run.pr], pad_seq(q) .. run.id, visible)
  if visible <= op.now then
    part.coming[run.pr] = part.coming[run.pr] + 1
  end
  part.rings_runs = true
end

function runs.step_out(run)
  op.enter(run.v or DEFAULT)
  local part, here = op.part, op.here
  if run.st == "leased" then
    zrem(here.leases, run.id)
    streams.spend(run.pr, run.ent)
  elseif run.st == "held" then
    zrem(here.held, runs.by_due(run))
  else
    zrem(here.queues[run.pr], pad_seq(run.q) .. run.id)
    part.ready_change = part.ready_change - 1
    if run.vis <= op.now then
      part.leaving[run.pr] = part.leaving[run.pr] + 1
    end
  end
  run.own, run.til, run.len, run.ent, run.why, run.q = nil, nil, nil, nil, nil, nil
end

-- a run as it is to stand, `st` ready or held
function runs.admit(run)
  local id, keys = run.id, op.keys
  local version = jobs.version_of(run.job) or run.v or DEFAULT
  run.v = version ~= DEFAULT and version or nil
  run.n = next_seq()
  if run.key then
    hset(keys.unique, run.key, id)
  end
  local place = pad(run.due) .. id
  zadd(keys.live, place, "0")
  zadd(keys.live_of .. run.job, place, "0")
  runs.stand(run, run.st, run.vis)
  op.runs[id], op.touched[id] = run, run
end

-- a row is {id, how it is to stand, body or false}
function runs.admit_row(row)
  local run = row[2]
  run.id, run.pr = row[1], run.pr or 2
  op.bodies[run.id] = row[3]
  runs.admit(run)
end

function runs.put_back(run, state, visible)
  runs.step_out(run)
  runs.stand(run, state, visible)
  runs.touch(run)
end

local function count_finished(job, kind, change)
  local name = runs.counter_name(job, kind)
  op.counter_changes[name] = (op.counter_changes[name] or 0) + change
end

-- finished runs are ordered by (when they finished, in which order)
function runs.add_to_history(run)
  local kind, place = runs.history_kind(run), runs.by_end(run)
  zadd(runs.class_key(run), place, "0")
  zadd(runs.history_key(run.job, kind), place, "0")
  if kind ~= "dead" then
    count_finished(run.job, kind, 1)
  end
  runs.touch(run)
end

-- take a finished run out of its history
function runs.drop_from_history(run)
  local kind, place = runs.history_kind(run), runs.by_end(run)
  zrem(runs.class_key(run), place)
  zrem(runs.history_key(run.job, kind), place)
  if kind ~= "dead" then
    count_finished(run.job, kind, -1)
  end
end

writes.writers[#writes.writers + 1] = {
  check = function()
    if next(op.counter_changes) then
      writes.check(op.keys.counters, "zset")
    end
  end,
  write = function()
    for name, change in pairs(op.counter_changes) do
      if call("ZINCRBY", op.keys.counters, change, name) == "0" then
        call("ZREM", op.keys.counters, name)
      end
    end
    op.counter_changes = {}
  end,
}

-- a live run ends
function runs.finish(run, state, finished)
  local keys, key = op.keys, run.key
  runs.step_out(run)
  if key and field_of(keys.unique, key) == run.id then
    hdel(keys.unique, key)
  end
  local place = pad(run.due) .. run.id
  zrem(keys.live, place)
  zrem(keys.live_of .. run.job, place)
  run.st, run.fin, run.n, run.pq = state, finished, nil, next_seq()
  runs.add_to_history(run)
end

function runs.forget(run)
  runs.drop_from_history(run)
  op.runs[run.id], op.touched[run.id] = false, false
end

-- the leader reads no other
local CAUSES = { schedule = true, forced = true, enqueued = true }

function runs.cause_of(run)
  return CAUSES[run.cause] and run.cause or "schedule"
end

-- the end of an attempt in which no handler code ran to its end
function runs.idle_end(run, state, failed, why)
  return { run.id, run.job, state, runs.cause_of(run), run.due, op.now, 0, failed, cjson.null, "", why,
    run.gated or false, false }
end

function runs.cancel_waiting(run, reason)
  run.cancel = reason ~= "" and reason or "cancelled"
  runs.finish(run, "cancelled", op.now)
  return runs.idle_end(run, "cancelled", false, run.cancel)
end

-- leave a request beside the lease; false if there is one already
function runs.ask_to_stop(run, reason)
  if run.cancel then
    return false
  end
  run.cancel = reason ~= "" and reason or "cancelled"
  runs.touch(run)
  op.asked[run.own] = true
  return true
end

-- End what waits of a deleted job, of no more than `limit` runs.  What is left is noted in the same write, so that
-- a caller that is cut off leaves nothing that nothing would end.  Answers how many were looked at, and whether there are more.
function runs.end_waiting(id, upto, after, why, limit)
  local live = runs.live_key(id)
  local from = after and "(" .. after or "-"
  local places = limit > 0 and call("ZRANGEBYLEX", live, from, "+", "LIMIT", 0, limit) or {}
  for _, place in ipairs(places) do
    local run = runs.read(runs.id_by_due(place))
    if run and run.st ~= "leased" and (run.n or 0) <= upto then
      feed.add_end(run, runs.cancel_waiting(run, why))
    end
    after = place
  end
  local is_more = #places == limit and call("ZLEXCOUNT", live, after and "(" .. after or "-", "+") > 0
  if is_more then
    hset(op.keys.unfinished, id, cmsgpack.pack({ after, upto, why }))
  else
    hdel(op.keys.unfinished, id)
  end
  return #places, is_more
end

-- Make a run live, unless its id is known, its job is deleted or its key is taken.
function runs.accept(row)
  local id, run = row[1], row[2]
  if runs.exists(id) then
    return "already", ""
  end
  if not jobs.exists(run.job) then
    return "stale", ""
  end
  if run.key then
    local holder = field_of(op.keys.unique, run.key)
    if holder then
      return "conflict", holder
    end
  end
  runs.admit_row(row)
  if run.st == "held" then
    feed.add_arrived(run)
  end
  return "ok", ""
end

-- attempts in vain stay as lines of JSON, the latest few
function runs.add_tried(run, line)
  local lines = {}
  for each in string.gmatch(run.tried or "", "[^\n]+") do
    lines[#lines + 1] = each
  end
  lines[#lines + 1] = line
  run.tried = table.concat(lines, "\n", math.max(1, #lines - TRIED_MAX + 1))
end

function runs.note_grant(is_first)
  local now = op.now
  set_count("granted", is_first and now or math.max(count_of("granted"), now))
  set_count("clock", math.max(count_of("clock"), now))
end

-- runs as they go to the caller: id, state, body, and again; no state where there is no run
function runs.add_parts(parts, ids)
  local n = #parts
  for _, id in ipairs(ids) do
    local row = call("HMGET", op.keys.run .. id, "s", "b")
    parts[n + 1], parts[n + 2], parts[n + 3] = id, row[1] or "", row[2] or ""
    n = n + 3
  end
  return parts
end

return runs
