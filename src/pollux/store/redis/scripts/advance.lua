#!lua
-- Write a plan whole, if the term is the current one.
local CAME_BACK_MS = 60000 -- a last due so far ahead was written before the clock came back
local WAITS_BEHIND = "waits for the previous run"
local stands = call("HMGET", META, "term", "holder", "term_home")
local is_at_home = stands[3] == (call("HGET", HOME, "home") or "")
if tonumber(stands[1] or 0) ~= A.term or (stands[2] or "") == "" or not is_at_home then
  return answer({ "fenced", now, {}, {}, 0, 0 })
end
promote()
local ends = {}

local function consume(id)
  if id < 1 then
    return
  end
  local place = text(id) .. "-0"
  local found = call("XRANGE", FEED, place, place)
  if found[1] then
    call("XDEL", FEED, place)
    local count = tonumber(found[1][2][2])
    if count > 0 then
      call("HINCRBY", META, "ends", -count)
    end
  end
end

local function is_fired(last, row)
  if call("EXISTS", run_key(row[1])) == 1 then
    return true
  end
  if not last or last > now + CAME_BACK_MS then
    return false
  end
  return row[3] <= last
end

-- ok, waits or overlapped; under CANCEL the previous run is asked to stop, or ends here if it only waited
local function overlap(row, how)
  if row[4] and call("HEXISTS", UNIQUE, row[4]) == 1 then
    return "overlapped"
  end
  local live = how ~= "allow" and call("ZCARD", live_key(row[2])) or 0
  if live == 0 then
    return "ok"
  end
  if how == "skip" then
    return "overlapped"
  end
  if how == "cancel" then
    local reason = "replaced by " .. row[1]
    for _, place in ipairs(call("ZRANGE", live_key(row[2]), 0, -1)) do
      local run = read_run(string.sub(place, 16))
      if run.st == "leased" then
        ask_to_stop(run, reason)
      elseif live == 1 then
        ends[#ends + 1] = cancel_waiting(run, reason)
        return "waits"
      end
    end
  end
  return live == 1 and "waits" or "overlapped"
end

-- a firing is {row, revision, next due or false, overlap, memory if overlapped or false}
local function fire(firing)
  local row, revision, next_due, how, memory = unpack(firing, 1, 5)
  local job = read_job(row[2])
  if not job or job.rev ~= revision then
    return "stale"
  end
  if is_fired(job.last, row) then
    return "already"
  end
  local kind = overlap(row, how)
  move_job(row[2], job, next_due, row[3])
  if kind == "overlapped" then
    if memory then
      call("HSET", job_key(row[2]), "mem", memory)
    end
  elseif kind == "waits" then
    row[6] = "held"
    admit(row)
    call("HSET", run_key(row[1]), "why", WAITS_BEHIND)
  else
    admit(row)
  end
  return kind
end

local function release(id)
  local run = read_run(id)
  if run and run.st == "held" then
    put_back(run, "ready", math.max(now, run.vis))
  end
end

local function hold(id, reason)
  if call("HGET", run_key(id), "st") == "held" then
    call("HSET", run_key(id), "why", reason)
  end
end

local function cancel(id, reason)
  local run = read_run(id)
  if run and run.st == "leased" then
    ask_to_stop(run, reason)
  elseif run and is_live(run) then
    cancel_waiting(run, reason)
  end
end

-- an update is {job, revision, next due or false, memory or "", last due or false}
local function update(item)
  local id, revision, next_due, memory, last_due = unpack(item, 1, 5)
  local job = read_job(id)
  if not job or job.rev ~= revision then
    return "stale"
  end
  move_job(id, job, next_due, last_due and math.max(job.last or last_due, last_due) or job.last)
  if memory ~= "" then
    call("HSET", job_key(id), "mem", memory)
  else
    call("HDEL", job_key(id), "mem")
  end
  return "ok"
end

local function seats()
  local sum = 0
  for _, packed in ipairs(call("HVALS", NODES)) do
    local node = cmsgpack.unpack(packed)
    if node[1] > now then
      sum = sum + node[2]
    end
  end
  return sum
end

for _, id in ipairs(A.consumed) do
  consume(id)
end
local firings, updates = {}, {}
local latest = get_number("clock")
for n, firing in ipairs(A.firings) do
  firings[n] = fire(firing)
  latest = math.max(latest, now, firing[1][7])
end
if #firings > 0 then
  call("HSET", META, "clock", latest)
end
for _, id in ipairs(A.releases) do
  release(id)
end
for _, item in ipairs(A.holds) do
  hold(item[1], item[2])
end
for _, item in ipairs(A.cancels) do
  cancel(item[1], item[2])
end
for n, item in ipairs(A.updates) do
  updates[n] = update(item)
end
write_notes(A.notes, {})
tell_ends(ends)
local ready = call("ZCARD", LINE_1) + call("ZCARD", LINE_2) + call("ZCARD", LINE_3)
return finished_call({ "ok", now, firings, updates, ready, seats() })
