-- Write a plan whole, if the term is the current one.
local call, text, DEFAULT = op.call, op.text, op.DEFAULT
local count_of, set_count, flush, check = writes.count_of, writes.set_count, writes.flush, writes.check
local CAME_BACK_MS = 5000 -- a last due so far ahead was written before the clock came back
local BEHIND_MAX = 1000 -- live runs of its job behind which a firing waits
local PREVIOUS_RUN = "waits for the previous run"
local CONSUMED_MAX = 100 -- entries of one number: more than one only if another client wrote them
local UNREAD_MAX = 1000 -- unread ends that a firing looks at, the latest first
local AHEAD = 1e15 -- entries of others from here on have numbers to which we do not count: see `feed.lua`

-- this plan's own, made anew by each
local plan

local function is_current(term)
  local row = call("HMGET", op.here.meta, "term", "holder", "term_home")
  local is_at_home = row[3] == (call("HGET", op.keys.home, "home") or "")
  return tonumber(row[1] or 0) == term and (row[2] or "") ~= "" and is_at_home
end

-- the number of ends in the head of an entry; one that is not of our making has none
local function count_ends(item)
  return item[2][1] == "ends" and math.max(0, tonumber(item[2][2]) or 0) or 0
end

-- the ends in an entry; none if it cannot be read
local function ends_in(item)
  local is_whole, entry = pcall(cmsgpack.unpack, item[2][4] or "")
  return is_whole and type(entry) == "table" and type(entry.ends) == "table" and entry.ends or {}
end

local function is_stale(id, revision)
  local job = jobs.read(id)
  return not job or job.rev ~= revision or job.v ~= op.args.v
end

-- a run of another version is none of ours any more
local function our_run(id)
  local run = runs.read(id)
  return run and (run.v or DEFAULT) == op.args.v and run
end

-- consumed entries of the feed

-- entries that stay although they are consumed: a job that was to learn from them is stale
local function find_kept()
  for _, item in ipairs(op.args.updates) do
    if is_stale(item[1], item[2]) then
      for _, id in ipairs(item[6]) do
        plan.kept[id] = true
      end
    end
  end
end

-- What another client wrote beside ours, under the same number, goes with it.  Its ends were never counted.
local function consume(id)
  if id < 1 or plan.kept[id] then
    return
  end
  if id >= AHEAD and id > count_of("entries") then
    plan.is_ahead = true
    return
  end
  for _, item in ipairs(call("XRANGE", op.here.feed, text(id), text(id), "COUNT", CONSUMED_MAX)) do
    plan.consumed[#plan.consumed + 1] = item[1]
    plan.is_miscounted = plan.is_miscounted or string.sub(item[1], -2) ~= "-0"
    set_count("ends", count_of("ends") - count_ends(item))
  end
end

local function behind_ours()
  return text(count_of("entries") + 1) .. "-0"
end

-- A count that such an entry may have spoilt is taken anew: one that is too low would hide unread ends from the firings.
local function count_anew()
  local gone, from, ends = {}, "-", 0
  local upto = plan.is_ahead and "(" .. behind_ours() or "+"
  for _, place in ipairs(plan.consumed) do
    gone[place] = true
  end
  repeat
    local items = call("XRANGE", op.here.feed, from, upto, "COUNT", CONSUMED_MAX)
    for _, item in ipairs(items) do
      ends = ends + (gone[item[1]] and 0 or count_ends(item))
      from = "(" .. item[1]
    end
  until #items < CONSUMED_MAX
  set_count("ends", ends)
end

local function consume_all()
  plan.is_miscounted = #op.args.spoilt > 0
  find_kept()
  for _, id in ipairs(op.args.consumed) do
    consume(id)
  end
  if plan.is_miscounted or count_of("ends") < 0 then
    count_anew()
  end
end

local function write_feed()
  writes.send("XDEL", plan.feed, plan.consumed)
  if plan.is_ahead then
    op.enter(op.args.v)
    feed.clear_ahead(plan.feed, behind_ours())
  end
end

-- unread ends

-- The jobs that have ends in the feed which the plan has not read; true as soon as one stays due for it.  Those that came
-- last were not read, so there are as many steps back as there are entries like that.
local function find_unread()
  local unread, own_feed = {}, plan.feed
  if writes.count_in(op.args.v, "ends") == 0 then
    return unread
  end
  local known, left, from, seen = {}, call("XLEN", own_feed), "+", 0
  for _, place in ipairs(plan.consumed) do
    left = known[place] and left or left - 1
    known[place] = true
  end
  local function is_read(id)
    local place = text(id) .. "-0"
    if id < AHEAD and not known[place] and call("XRANGE", own_feed, place, place)[1] then
      known[place], left = true, left - 1
    end
  end
  for _, id in ipairs(op.args.read) do
    is_read(id)
  end
  for id in pairs(plan.kept) do
    is_read(id)
  end
  while left > 0 and seen < UNREAD_MAX do
    local item = call("XREVRANGE", own_feed, from, "-", "COUNT", 1)[1]
    if not item then
      break
    end
    from = "(" .. item[1]
    if not known[item[1]] then
      left, seen = left - 1, seen + count_ends(item)
      for _, each in ipairs(ends_in(item)) do
        if type(each) == "table" and each[2] then
          unread[each[2]] = false
        end
      end
    end
  end
  return unread
end

local function is_unread(id)
  plan.unread = plan.unread or find_unread()
  return plan.unread[id] ~= nil
end

-- firings

local function is_fired(last, row)
  if runs.exists(row[1]) then
    return true
  end
  if not last or last > op.now + CAME_BACK_MS then
    return false
  end
  return row[2].due <= last
end

local function is_behind(run)
  return run.st == "held" and run.why == PREVIOUS_RUN
end

-- The first live runs that can overlap, as many as a firing looks at: those for later are due behind them.
local function places_of(job, live)
  return call("ZRANGEBYLEX", live, "-", overlap.behind_due(job), "LIMIT", 0, BEHIND_MAX)
end

-- Does one of these live runs wait itself?  The job knows which one it was last; else it is one of those that are held.  So
-- nothing looks at all the others, wherever they stand.
local function has_waiting(job, live)
  local last = job.behind and runs.read(job.behind)
  if last and last.job == job.id and is_behind(last) then
    return true
  end
  local held, places = op.keys_in(op.args.v).held, places_of(job, live)
  check(held, "zset")
  for n, score in ipairs(#places > 0 and call("ZMSCORE", held, unpack(places)) or {}) do
    local run = score and runs.read(runs.id_by_due(places[n]))
    if run and is_behind(run) then
      jobs.note_behind(job, run.id)
      return true
    end
  end
  return false
end

-- under CANCEL, runs of the schedule are asked to stop, or end here if they only waited and are replaced
local function cancel_previous(places, reason, is_replaced)
  for _, place in ipairs(places) do
    local run = runs.read(runs.id_by_due(place))
    if run and (not run.cause or run.cause == "schedule") then
      if run.st == "leased" then
        runs.ask_to_stop(run, reason)
      elseif is_replaced then
        feed.add_end(run, runs.cancel_waiting(run, reason))
      end
    end
  end
end

-- ok, waits, overlapped or unread
local function overlap_of(job, row, how)
  local new = row[2]
  if new.key and writes.field_of(op.keys.unique, new.key) then
    return "overlapped"
  end
  if how == "allow" then
    return "ok"
  end
  local live = flush(runs.live_key(job.id))
  local size = call("ZCARD", live)
  if size > BEHIND_MAX then -- those for later count for nothing
    size = call("ZLEXCOUNT", live, "-", overlap.behind_due(job))
  end
  if how == "queue" and size > BEHIND_MAX then
    return "overlapped"
  end
  local is_met = size > 0 and overlap.first(job, live, function(run)
    return run or how == "skip" or size > BEHIND_MAX -- behind one that cannot be read it would never begin
  end)
  if not is_met then
    return is_unread(job.id) and "unread" or "ok"
  end
  if how == "skip" then
    return "overlapped"
  end
  local waits = size <= BEHIND_MAX and not has_waiting(job, live)
  if how == "cancel" then
    cancel_previous(places_of(job, live), "replaced by " .. row[1], waits)
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
  local job = jobs.read(run.job)
  if is_fired(job.last, row) then
    return "already"
  end
  if plan.unread and plan.unread[run.job] then
    return "unread"
  end
  local kind = overlap_of(job, row, how)
  if kind == "unread" then
    plan.unread[run.job] = true
    jobs.set_times(job, run.due, job.last)
    return kind
  end
  jobs.set_times(job, next_due, run.due)
  if kind == "overlapped" then
    if memory then
      job.fields.mem = memory
    end
    return kind
  end
  if kind == "waits" then
    run.st, run.why = "held", PREVIOUS_RUN
    jobs.note_behind(job, row[1])
  end
  runs.admit_row(row)
  return kind
end

local function fire_all()
  local firings, answers, ids = op.args.firings, {}, {}
  for n, firing in ipairs(firings) do
    ids[n] = firing[1][1]
  end
  runs.expect_new(ids)
  op.enter(op.args.v)
  local latest = count_of("clock")
  for n, firing in ipairs(firings) do
    answers[n] = fire(firing)
    latest = math.max(latest, op.now, firing[1][2].vis)
  end
  if #firings > 0 then
    writes.set_count_in(op.args.v, "clock", latest)
  end
  return answers
end

-- runs that wait

local function release(id)
  local run = our_run(id)
  if run and run.st == "held" then
    runs.put_back(run, "ready", math.max(op.now, run.vis))
  end
end

local function bring_forward(id, visible)
  local run = our_run(id)
  if run and run.vis > visible and run.st == "ready" then
    runs.put_back(run, "ready", visible)
  elseif run and run.vis > visible and run.st == "held" then
    run.vis = visible
    runs.touch(run)
  end
end

-- One that overlaps and does not wait itself is mostly the first that is found.  Nor do those that are asked about here bar
-- each other: the first of them that may begins.
local function has_mate(run)
  local job = jobs.read(run.job) or { v = op.args.v }
  return overlap.first(job, flush(runs.live_key(run.job)), function(mate)
    return mate and mate.id ~= run.id and not is_behind(mate) and not (mate.st == "held" and plan.is_alone[mate.id])
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
      runs.touch(run)
    end
    return false
  end
  runs.put_back(run, "ready", math.max(op.now, run.vis))
  return true
end

local function release_all()
  local waiting = {}
  for _, item in ipairs(op.args.earlier) do
    bring_forward(item[1], item[2])
  end
  for _, id in ipairs(op.args.releases) do
    release(id)
  end
  for _, id in ipairs(op.args.alone) do
    plan.is_alone[id] = true
  end
  for _, id in ipairs(op.args.alone) do
    if not release_alone(id) then
      waiting[#waiting + 1] = id
    end
  end
  return waiting
end

local function hold(id, reason)
  local run = our_run(id)
  if run and run.st == "held" then
    run.why = reason
    runs.touch(run)
  end
end

local function cancel(id, reason)
  local run = our_run(id)
  if run and run.st == "leased" then
    runs.ask_to_stop(run, reason)
  elseif run and runs.is_live(run) then
    runs.cancel_waiting(run, reason)
  end
end

-- an update is {job, revision, next due or false, memory or "", last due or false, consumed entries that it learnt from}
local function update(item)
  local id, revision, next_due, memory, last_due = unpack(item, 1, 5)
  if is_stale(id, revision) then
    return "stale"
  end
  local job = jobs.read(id)
  jobs.set_times(job, next_due, last_due and math.max(job.last or last_due, last_due) or job.last)
  job.fields.mem = memory
  return "ok"
end

local function count_ready()
  op.enter(op.args.v)
  local ready = op.part.ready_change
  for pr = 1, 3 do
    ready = ready + call("ZCARD", op.here.queues[pr])
  end
  return ready
end

register.write("advance", "", function()
  local args = op.args
  if not is_current(args.term) then
    return { "fenced", op.now, {}, {}, 0, 0, {} }
  end
  plan = { feed = op.here.feed, consumed = {}, kept = {}, is_alone = {} }
  streams.promote()
  consume_all()
  local firings, waiting, updates = fire_all(), release_all(), {}
  for _, item in ipairs(args.holds) do
    hold(item[1], item[2])
  end
  for _, item in ipairs(args.cancels) do
    cancel(item[1], item[2])
  end
  for n, item in ipairs(args.updates) do
    updates[n] = update(item)
  end
  notes.write(args.notes, {})
  feed.add_gathered()
  op.writers[1] = {
    check = function()
      check(plan.feed, "stream")
    end,
    write = write_feed,
  }
  return { "ok", op.now, firings, updates, count_ready(), versions.seats(), waiting }
end)
