#!lua
-- Write a plan whole, if the term is the current one.
local CAME_BACK_MS = 5000 -- a last due so far ahead was written before the clock came back
local BEHIND_MAX = 1000 -- live runs of its job behind which a firing waits
local PREVIOUS_RUN = "waits for the previous run"
local CONSUMED_MAX = 100 -- entries of one number: more than one only if somebody else wrote them
local UNREAD_MAX = 1000 -- unread ends that a firing looks at, the latest first
local stands = call("HMGET", META, "term", "holder", "term_home")
local is_at_home = stands[3] == (call("HGET", HOME, "home") or "")
if tonumber(stands[1] or 0) ~= A.term or (stands[2] or "") == "" or not is_at_home then
  return answer({ "fenced", now, {}, {}, 0, 0, {} })
end
promote()
local consumed, feed = {}, FEED
local is_ahead, AHEAD = false, 1e15 -- entries of others with numbers that we do not count to: see `tell_now`
local is_miscounted = #A.spoilt > 0

-- how many ends an entry says that it has; one that is not of our making has none
local function ends_told(item)
  return item[2][1] == "ends" and math.max(0, tonumber(item[2][2]) or 0) or 0
end

local function is_stale(id, revision)
  local job = read_job(id)
  return not job or job.rev ~= revision or job.v ~= OWN
end

-- entries that stay although they are consumed: a job that was to learn from them is stale
local kept = {}
for _, item in ipairs(A.updates) do
  if is_stale(item[1], item[2]) then
    for _, id in ipairs(item[6]) do
      kept[id] = true
    end
  end
end

-- What somebody wrote beside ours, under the same number, goes with it.  What it says of ends was never counted.
local function consume(id)
  if id < 1 or kept[id] then
    return
  end
  if id >= AHEAD and id > count_of("entries") then
    is_ahead = true
    return
  end
  for _, item in ipairs(call("XRANGE", feed, text(id), text(id), "COUNT", CONSUMED_MAX)) do
    consumed[#consumed + 1] = item[1]
    is_miscounted = is_miscounted or string.sub(item[1], -2) ~= "-0"
    set_count("ends", count_of("ends") - ends_told(item))
  end
end

local function behind_ours()
  return text(count_of("entries") + 1) .. "-0"
end

-- A count that such an entry may have spoilt is taken anew: one that is too low would hide unread ends from the firings.
local function count_anew()
  local gone, from, ends = {}, "-", 0
  local upto = is_ahead and "(" .. behind_ours() or "+"
  for _, place in ipairs(consumed) do
    gone[place] = true
  end
  repeat
    local items = call("XRANGE", feed, from, upto, "COUNT", CONSUMED_MAX)
    for _, item in ipairs(items) do
      ends = ends + (gone[item[1]] and 0 or ends_told(item))
      from = "(" .. item[1]
    end
  until #items < CONSUMED_MAX
  set_count("ends", ends)
end

-- the ends that an entry tells; none if it cannot be read
local function ends_in(item)
  local is_whole, entry = pcall(cmsgpack.unpack, item[2][4] or "")
  return is_whole and type(entry) == "table" and type(entry.ends) == "table" and entry.ends or {}
end

local function is_fired(last, row)
  if has_run(row[1]) then
    return true
  end
  if not last or last > now + CAME_BACK_MS then
    return false
  end
  return row[2].due <= last
end

-- The jobs that have ends in the feed which the plan has not read; true as soon as one stays due for it.  Those that came
-- last were not read, so there are as many steps back as there are entries like that.
local unread

local function look_into_feed()
  unread = {}
  if count_of("ends") == 0 then
    return
  end
  local known, left, from, seen = {}, call("XLEN", feed), "+", 0
  for _, place in ipairs(consumed) do
    left = known[place] and left or left - 1
    known[place] = true
  end
  local function is_read(id)
    local place = text(id) .. "-0"
    if id < AHEAD and not known[place] and call("XRANGE", feed, place, place)[1] then
      known[place], left = true, left - 1
    end
  end
  for _, id in ipairs(A.read) do
    is_read(id)
  end
  for id in pairs(kept) do
    is_read(id)
  end
  while left > 0 and seen < UNREAD_MAX do
    local item = call("XREVRANGE", feed, from, "-", "COUNT", 1)[1]
    if not item then
      return
    end
    from = "(" .. item[1]
    if not known[item[1]] then
      left, seen = left - 1, seen + ends_told(item)
      for _, each in ipairs(ends_in(item)) do
        if type(each) == "table" and each[2] then
          unread[each[2]] = false
        end
      end
    end
  end
end

local function is_unread(id)
  if not unread then
    look_into_feed()
  end
  return unread[id] ~= nil
end

local function is_behind(run)
  return run.st == "held" and run.why == PREVIOUS_RUN
end

-- The first live runs that can overlap, as many as a firing looks at: those for later are due behind them.
local function places_of(job, live)
  return call("ZRANGEBYLEX", live, "-", behind_due(job), "LIMIT", 0, BEHIND_MAX)
end

-- Does one of these live runs wait itself?  The job knows which one it was last; else it is one of those that are held.  So
-- nobody looks at all the others, wherever they stand.
local function has_waiting(job, live)
  local last = job.behind and read_run(job.behind)
  if last and last.job == job.id and is_behind(last) then
    return true
  end
  local held, places = key_of(OWN, "held"), places_of(job, live)
  check(held, "zset")
  for n, score in ipairs(#places > 0 and call("ZMSCORE", held, unpack(places)) or {}) do
    local run = score and read_run(string.sub(places[n], 16))
    if run and is_behind(run) then
      note_behind(job, run.id)
      return true
    end
  end
  return false
end

local function mates_of(job, live)
  local mates = {}
  for _, place in ipairs(places_of(job, live)) do
    mates[#mates + 1] = read_run(string.sub(place, 16))
  end
  return mates
end

-- under CANCEL, runs of the schedule are asked to stop, or end here if they only waited and are replaced
local function cancel_previous(mates, reason, is_replaced)
  for _, run in ipairs(mates) do
    if not run.cause or run.cause == "schedule" then
      if run.st == "leased" then
        ask_to_stop(run, reason)
      elseif is_replaced then
        add_end(run, cancel_waiting(run, reason))
      end
    end
  end
end

-- ok, waits, overlapped or unread
local function overlap(job, row, how)
  local new = row[2]
  if new.key and field_of(UNIQUE, new.key) then
    return "overlapped"
  end
  if how == "allow" then
    return "ok"
  end
  local live = fresh(live_key(job.id))
  local size = call("ZCARD", live)
  if size > BEHIND_MAX then -- those for later count for nothing
    size = call("ZLEXCOUNT", live, "-", behind_due(job))
  end
  if how == "queue" and size > BEHIND_MAX then
    return "overlapped"
  end
  local is_met = size > 0 and first_overlapping(job, live, function(run)
    return run or how == "skip" or size > BEHIND_MAX -- behind one that cannot be read nobody would ever let it begin
  end)
  if not is_met then
    return is_unread(job.id) and "unread" or "ok"
  end
  if how == "skip" then
    return "overlapped"
  end
  local waits = size <= BEHIND_MAX and not has_waiting(job, live)
  if how == "cancel" then
    cancel_previous(mates_of(job, live), "replaced by " .. row[1], waits)
  end
  return waits and "waits" or "overlapped"
end

-- a firing is {row, revision, next due or false, overlap, memory if overlapped or false}
local function fire(firing)
  local row, revision, next_due, how, memory = unpack(firing, 1, 5)
  local run = row[2]
  if is_stale(run.job, revision) then
    return "stale"
  end
  local job = read_job(run.job)
  if is_fired(job.last, row) then
    return "already"
  end
  if unread and unread[run.job] then
    return "unread"
  end
  local kind = overlap(job, row, how)
  if kind == "unread" then
    unread[run.job] = true
    move_job(job, run.due, job.last)
    return kind
  end
  move_job(job, next_due, run.due)
  if kind == "overlapped" then
    if memory then
      job.fields.mem = memory
    end
  elseif kind == "waits" then
    run.st, run.why = "held", PREVIOUS_RUN
    admit_row(row)
    note_behind(job, row[1])
  else
    admit_row(row)
  end
  return kind
end

-- a run of another version is none of ours any more
local function our_run(id)
  local run = read_run(id)
  return run and (run.v or DEFAULT) == OWN and run
end

local function release(id)
  local run = our_run(id)
  if run and run.st == "held" then
    put_back(run, "ready", math.max(now, run.vis))
  end
end

local function bring_forward(id, visible)
  local run = our_run(id)
  if run and run.vis > visible and run.st == "ready" then
    put_back(run, "ready", visible)
  elseif run and run.vis > visible and run.st == "held" then
    run.vis = visible
    touch(run)
  end
end

local is_alone = {}
for _, id in ipairs(A.alone) do
  is_alone[id] = true
end

-- One that overlaps and does not wait itself is mostly the first that is found.  Nor do those that are asked about here bar
-- each other: the first of them that may begins.
local function has_mate(run)
  local job = read_job(run.job) or { v = OWN }
  return first_overlapping(job, fresh(live_key(run.job)), function(mate)
    return mate and mate.id ~= run.id and not is_behind(mate) and not (mate.st == "held" and is_alone[mate.id])
  end)
end

-- false if it waits on: another run of its job overlaps that does not wait so itself, or an end of it is unread
local function release_alone(id)
  local run = our_run(id)
  if not run or run.st ~= "held" then
    return true
  end
  if has_mate(run) or is_unread(run.job) then
    if not is_behind(run) then
      run.why = PREVIOUS_RUN
      touch(run)
    end
    return false
  end
  put_back(run, "ready", math.max(now, run.vis))
  return true
end

local function hold(id, reason)
  local run = our_run(id)
  if run and run.st == "held" then
    run.why = reason
    touch(run)
  end
end

local function cancel(id, reason)
  local run = our_run(id)
  if run and run.st == "leased" then
    ask_to_stop(run, reason)
  elseif run and is_live(run) then
    cancel_waiting(run, reason)
  end
end

-- an update is {job, revision, next due or false, memory or "", last due or false, consumed entries that it learnt from}
local function update(item)
  local id, revision, next_due, memory, last_due = unpack(item, 1, 5)
  if is_stale(id, revision) then
    return "stale"
  end
  local job = read_job(id)
  move_job(job, next_due, last_due and math.max(job.last or last_due, last_due) or job.last)
  job.fields.mem = memory
  return "ok"
end

local function seats()
  local sum = 0
  for _, packed in ipairs(call("HVALS", NODES)) do
    local node = node_of(packed)
    local serves = node and node[6] or DEFAULT
    if node and node[1] > now and serves == OWN then
      sum = sum + node[2]
    end
  end
  return sum
end

for _, id in ipairs(A.consumed) do
  consume(id)
end
if is_miscounted or count_of("ends") < 0 then
  count_anew()
end
local firings, updates, new_ids = {}, {}, {}
for n, firing in ipairs(A.firings) do
  new_ids[n] = firing[1][1]
end
expect_new(new_ids)
enter(OWN)
local latest = count_of("clock")
for n, firing in ipairs(A.firings) do
  firings[n] = fire(firing)
  latest = math.max(latest, now, firing[1][2].vis)
end
if #firings > 0 then
  set_count_in(OWN, "clock", latest)
end
for _, item in ipairs(A.earlier) do
  bring_forward(item[1], item[2])
end
for _, id in ipairs(A.releases) do
  release(id)
end
local waiting = {}
for _, id in ipairs(A.alone) do
  if not release_alone(id) then
    waiting[#waiting + 1] = id
  end
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
tell_gathered()
writers[#writers + 1] = {
  check = function()
    check(feed, "stream")
  end,
  write = function()
    if #consumed > 0 then
      call("XDEL", feed, unpack(consumed))
    end
    if is_ahead then
      clear_ahead(feed, behind_ours())
    end
  end,
}
enter(OWN)
local ready = call("ZCARD", QUEUE_1) + call("ZCARD", QUEUE_2) + call("ZCARD", QUEUE_3) + ready_change
return answer({ "ok", now, firings, updates, ready, seats(), waiting })
