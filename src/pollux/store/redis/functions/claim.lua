-- Lease up to `limit` runs to `node`, after taking back the leases that ended.
local call, text, DEFAULT = op.call, op.text, op.DEFAULT
local zadd, zrem, check, flush = writes.zadd, writes.zrem, writes.check, writes.flush
local count_of, set_count = writes.count_of, writes.set_count
local TAKE_BACK_MAX = 1000 -- leases that one call takes back, and runs it shows; the next call goes on
local JUMP_MS = 1000

-- what this claim finds: made anew by each
local function new_claim()
  return {
    ids = {}, bodies = {}, -- of what is leased
    jobs = {}, -- rows by id; false: there is none
    strays = {}, -- what stood in a queue and is no run
    unfit = {}, -- fields that were left out of a run when it was read: the caller buries such a run
  }
end

local function job_of(claim, run)
  local row = claim.jobs[run.job]
  if row == nil then
    row = jobs.row(run.job)
    claim.jobs[run.job] = row
  end
  return row
end

-- The runs come behind the packed answer: id, state, body, and again; all as they stand once everything is written.
local function answer(claim, kind, look_again)
  local found, seen = {}, {}
  for _, id in ipairs(claim.ids) do
    local run = op.runs[id]
    if not seen[run.job] then
      seen[run.job] = true
      found[#found + 1] = job_of(claim, run) or nil
    end
  end
  check(op.here.bell_runs, "stream")
  local bell = op.here.bell_runs
  return function()
    local parts = { cmsgpack.pack({ kind, found, count_of("stops"), look_again, op.now, op.bell_place(bell), claim.strays,
      op.healed }) }
    local n = 1
    for place, id in ipairs(claim.ids) do
      parts[n + 1], parts[n + 2], parts[n + 3] = id, op.packed[id], claim.bodies[place] or ""
      if claim.unfit[id] then
        parts[n + 2], parts[n + 3] = "", claim.unfit[id]
      end
      n = n + 3
    end
    return parts
  end
end

-- What the same claim got before, as far as its leases still stand; was there such a claim at all?
local function find_before(claim)
  local all = call("LINDEX", op.keys.claim .. op.args.token, 0) or ""
  for id in string.gmatch(all, "%S+") do
    local run = runs.read(id)
    if run and runs.is_taken_by(run, op.args.token) and run.til > op.now then
      local row = call("HMGET", op.keys.run .. id, "s", "b")
      claim.ids[#claim.ids + 1] = id
      op.packed[id], claim.bodies[#claim.ids] = row[1], row[2]
    end
  end
  return all ~= ""
end

-- the clock came back: no lease lasts longer from now than it was given for
local function cut_leases()
  local leases, now = op.here.leases, op.now
  for _, id in ipairs(call("ZRANGE", leases, 0, -1)) do
    local run = runs.read(id)
    if run and run.st == "leased" and run.til > now + run.len then
      run.til = now + run.len
      zadd(leases, id, run.til)
      runs.touch(run)
    end
  end
  set_count("granted", now)
end

-- and what had been visible before stays so, in its order, also what is leased
local function show(latest)
  local now, here = op.now, op.here
  local back, count = latest - now, 0
  for _, id in ipairs(call("ZRANGE", here.leases, 0, -1)) do
    local run = runs.read(id)
    if run and run.st == "leased" and run.vis > now and run.vis <= latest then
      run.vis = run.vis - back
      runs.touch(run)
    end
  end
  for pr = 1, 3 do
    local queue = here.queues[pr]
    local ahead = call("ZRANGEBYSCORE", queue, "(" .. text(now), latest, "WITHSCORES", "LIMIT", 0, TAKE_BACK_MAX)
    for n = 1, #ahead, 2 do
      local run = runs.read(runs.id_in_queue(ahead[n]))
      local visible = tonumber(ahead[n + 1]) - back
      zadd(queue, ahead[n], visible)
      if run then
        run.vis = visible
        runs.touch(run)
      end
      op.part.coming[pr] = op.part.coming[pr] + 1
      count = math.max(count, n)
    end
  end
  if count < 2 * TAKE_BACK_MAX - 1 then
    set_count("clock", now)
  end
end

-- a lease ended without a settlement; the token goes: a settlement of its owner comes too late
local function lose(run)
  local ended, owner, losses = run.til, run.own, (run.loss or 0) + 1
  run.tok, run.loss, run.vis = nil, losses, ended
  local why = run.cancel or (not jobs.exists(run.job) and jobs.GONE)
  if why then
    run.cancel = why
    runs.finish(run, "cancelled", op.now)
    return runs.idle_end(run, "cancelled", false, why)
  end
  if losses >= op.args.losses_max then
    local lost = "its lease was lost " .. text(losses) .. " times: its workers died or stalled"
    run.failed, run.err = true, lost
    runs.finish(run, "dead", op.now)
    return runs.idle_end(run, "dead", true, lost)
  end
  runs.add_tried(run, "[" .. text(run.fence or 0) .. "," .. text(ended) .. "," .. cjson.encode(owner) .. "]")
  runs.put_back(run, "ready", ended)
  return runs.idle_end(run, "ready", false, "")
end

local function take_back(can_reclaim)
  local now, leases = op.now, op.here.leases
  if now < count_of("granted") then
    cut_leases()
  end
  if now < count_of("clock") then
    show(count_of("clock"))
  end
  if can_reclaim then
    for _, id in ipairs(call("ZRANGEBYSCORE", flush(leases), "-inf", now, "LIMIT", 0, TAKE_BACK_MAX)) do
      local run = runs.read(id)
      if run and run.st == "leased" then
        feed.add_end(run, lose(run))
      else
        zrem(leases, id)
      end
    end
    op.sound[leases] = true
  end
end

local function lease(run, entry, til)
  local args, fence = op.args, (run.fence or 0) + 1
  run.st, run.fence, run.tok, run.own = "leased", fence, args.token .. ":" .. fence, args.node
  run.til, run.len, run.ent, run.prog, run.q, run.why = op.now + args.lease_ms, args.lease_ms, entry, nil, nil, nil
  zadd(op.here.leases, run.id, til)
  runs.touch(run)
end

-- the run at a place of a queue, and its body
local function run_at(claim, place)
  local id = runs.id_in_queue(place)
  local key = op.keys.run .. id
  local known = op.runs[id]
  if known ~= nil then
    return known, call("HGET", key, "b")
  end
  local row = redis.pcall("HMGET", key, "s", "b")
  local run = not row.err and row[1] and runs.unpacked(id, row[1]) or false
  op.runs[id] = run
  if not run and (row.err or row[1]) then
    claim.strays[#claim.strays + 1] = key
  end
  return run, row[2]
end

-- true if nothing visible is left in the queue
local function take_from(claim, pr)
  local queue, ids, limit = op.here.queues[pr], claim.ids, op.args.limit
  while #ids < limit do
    local wanted = limit - #ids
    local places = call("ZRANGEBYSCORE", flush(queue), "-inf", op.now, "LIMIT", 0, wanted)
    if #places == 0 then
      return true
    end
    for _, place in ipairs(places) do
      local run, body = run_at(claim, place)
      if not run or run.st ~= "ready" then
        zrem(queue, place)
        op.part.leaving[pr] = op.part.leaving[pr] + 1
      elseif job_of(claim, run) then
        zrem(queue, place)
        claim.unfit[run.id] = op.unread_fields[run.id]
        run.st, run.pr = "leased", pr -- should it stand elsewhere, too: it takes one entry, of this stream
        ids[#ids + 1] = run.id
        claim.bodies[#ids] = body
      else
        feed.add_end(run, runs.cancel_waiting(run, jobs.GONE))
      end
    end
    if #places < wanted then
      return false
    end
  end
  return false
end

-- {priority, first, last, is the queue empty by now} of each, in the caller's order
local function take(claim)
  local lots, asked = {}, op.args.first
  for n = 0, 2 do
    local pr = (asked - 1 + n) % 3 + 1
    if n > 0 and pr < asked then
      pr = n - (3 - asked)
    end
    local first = #claim.ids + 1
    local is_empty = take_from(claim, pr)
    lots[n + 1] = { pr, first, #claim.ids, is_empty }
  end
  return lots
end

-- Entries cannot be put back as they were, so all that could still be refused is looked at before.
local function lease_all(claim, lots)
  local here, node, had, til = op.here, op.args.node, {}, text(op.now + op.args.lease_ms)
  check(here.leases, "zset")
  check(here.bell_runs, "stream")
  for pr = 1, 3 do
    had[pr], op.sound[here.streams[pr]] = call("XLEN", here.streams[pr]), true
  end
  writes.check_all()
  op.undos = false -- from here on nothing is undone
  for _, lot in ipairs(lots) do
    local pr, first, last, is_empty = unpack(lot, 1, 4)
    local entries = last >= first and streams.take(pr, last - first + 1, node)
    for n = first, last do
      lease(op.runs[claim.ids[n]], entries[n - first + 1], til)
    end
    if is_empty and had[pr] > 0 then
      streams.drop_surplus(pr, node)
    end
  end
end

-- when there may be more: the first visible time, or the first end of a lease
local function look_again(hold)
  local first = false
  for pr = 1, 3 do
    local next_one = call("ZRANGE", flush(op.here.queues[pr]), 0, 0, "WITHSCORES")
    if next_one[2] and (not first or tonumber(next_one[2]) < first) then
      first = tonumber(next_one[2])
    end
  end
  local lease_end = call("ZRANGE", flush(op.here.leases), 0, 0, "WITHSCORES")
  if lease_end[2] then
    local ends = math.max(tonumber(lease_end[2]), hold > 0 and op.now + hold or 0)
    if not first or ends < first then
      first = ends
    end
  end
  return first
end

local function remember(claim, was_used)
  local key = op.keys.claim .. op.args.token
  if was_used then
    call("DEL", key)
  end
  call("RPUSH", key, table.concat(claim.ids, " "))
  call("PEXPIRE", key, 2 * op.args.lease_ms + 60000)
  runs.note_grant(call("ZCARD", flush(op.here.leases)) == #claim.ids)
end

-- A claim that goes with a wait is good until a time, and does nothing after it: see `wakeup.py`.
register.write("claim", "allow-oom", function()
  local args, claim = op.args, new_claim()
  if args["until"] and op.now > args["until"] then
    return nil
  end
  local was_used = find_before(claim)
  if claim.ids[1] then
    return answer(claim, "ok", false)
  end
  if count_of("ends") > args.feed_max then
    return answer(claim, "full", false)
  end
  local hold = args.hold_ms
  if args.expected and op.now > args.expected + JUMP_MS then -- the clock jumped since this caller asked last
    hold = math.max(hold, args.grace_ms)
  end
  streams.promote()
  take_back(hold == 0)
  local lots = take(claim)
  feed.add_gathered()
  lease_all(claim, lots)
  if claim.ids[1] then
    remember(claim, was_used)
  end
  return answer(claim, "ok", not claim.ids[1] and look_again(hold))
end)

-- What was leased by a claim and cannot be read by its caller is dead, with the reason: none of it stops the others.  An item
-- is {run, why}.  Of what another client wrote there only what can be ours stays.
local STAYS = {
  st = true, job = true, due = true, vis = true, cause = true, key = true, pr = true, gated = true, att = true,
  loss = true, crash = true, fence = true, tok = true, own = true, til = true, len = true, ent = true, n = true, v = true,
  id = true,
}

local function cleanse(run)
  for field in pairs(run) do
    if not STAYS[field] then
      run[field] = nil
    end
  end
  run.cause = runs.cause_of(run)
  op.bodies[run.id] = "{}"
end

register.write("bury", "allow-oom", function()
  streams.promote()
  for _, item in ipairs(op.args.items) do
    local run = runs.read(item[1])
    if run and runs.is_taken_by(run, op.args.token) then
      cleanse(run)
      run.failed, run.err = true, item[2]
      runs.finish(run, "dead", op.now)
      feed.add_end(run, runs.idle_end(run, "dead", true, item[2]))
    end
  end
  feed.add_gathered()
  return true
end)

-- Extend leases; items are {run, token, progress}.
register.write("renew", "allow-oom", function()
  local answers, renewed, lease_ms = {}, {}, op.args.lease_ms
  for n, item in ipairs(op.args.items) do
    local id, token, progress = unpack(item, 1, 3)
    local run = runs.read(id)
    if run and run.st == "leased" and run.tok == token then
      local version = run.v or DEFAULT
      run.til, run.len = op.now + lease_ms, lease_ms
      zadd(op.keys_in(version).leases, id, run.til)
      if progress ~= "" then
        run.prog = progress
      end
      runs.touch(run)
      answers[n] = { "ok", run.cancel or "" }
      renewed[version] = true
    else
      answers[n] = { "lost", "" }
    end
  end
  for version in pairs(renewed) do
    op.enter(version)
    runs.note_grant(false)
  end
  return answers
end)
