#!lua flags=allow-oom
-- Lease up to `limit` runs to `node`, after taking back the leases that ended.
local TAKE_BACK_MAX = 1000 -- leases that one call takes back, and runs it shows; the next call goes on
local LEAP_MS = 1000
local strays = {} -- what stood in a line and is no run
local unfit = {} -- of which something was left out when it was read: its caller is told what, and has it buried

local job_rows = {}

local function job_of(run)
  local row = job_rows[run.job]
  if row == nil then
    row = job_row(run.job)
    job_rows[run.job] = row
  end
  return row
end

local function jobs_of(ids)
  local found, seen = {}, {}
  for _, id in ipairs(ids) do
    local run = runs[id]
    if not seen[run.job] then
      seen[run.job] = true
      found[#found + 1] = job_of(run) or nil
    end
  end
  return found
end

-- the runs come behind the packed answer: id, state, body, and again
local function claimed(kind, ids, texts, look_again)
  local jobs_found = jobs_of(ids)
  check(BELL_RUNS, "stream")
  commit()
  local parts = { cmsgpack.pack({ kind, jobs_found, count_of("stops"), look_again, now, bell_place(BELL_RUNS), strays,
    healed }) }
  for n, id in ipairs(ids) do
    parts[3 * n - 1], parts[3 * n], parts[3 * n + 1] = id, packed[id], texts[n] or ""
    if unfit[id] then
      parts[3 * n], parts[3 * n + 1] = "", unfit[id]
    end
  end
  return counted(parts)
end

local claim_key = PREFIX .. "claim:" .. A.token

-- what the same claim got before, as far as its leases still stand
local function claimed_before()
  local ids, texts = {}, {}
  local all = call("LINDEX", claim_key, 0) or ""
  for id in string.gmatch(all, "%S+") do
    local run = read_run(id)
    if run and is_taken_by(run, A.token) and run.til > now then
      local row = call("HMGET", run_key(id), "s", "b")
      ids[#ids + 1] = id
      packed[id], texts[#ids] = row[1], row[2]
    end
  end
  return ids, texts, all ~= ""
end

-- the clock came back: no lease lasts longer from now than it was given for
local function cut_leases()
  for _, id in ipairs(call("ZRANGE", LEASES, 0, -1)) do
    local run = read_run(id)
    if run and run.st == "leased" and run.til > now + run.len then
      run.til = now + run.len
      put("zset", LEASES, id, run.til)
      touch(run)
    end
  end
  set_count("granted", now)
end

-- and what had been visible before stays so, in its order, also what is leased
local function show(latest)
  local back, count = latest - now, 0
  for _, id in ipairs(call("ZRANGE", LEASES, 0, -1)) do
    local run = read_run(id)
    if run and run.st == "leased" and run.vis > now and run.vis <= latest then
      run.vis = run.vis - back
      touch(run)
    end
  end
  for pr = 1, 3 do
    local ahead = call("ZRANGEBYSCORE", QUEUE[pr], "(" .. text(now), latest, "WITHSCORES", "LIMIT", 0, TAKE_BACK_MAX)
    for n = 1, #ahead, 2 do
      local run = read_run(string.sub(ahead[n], 15))
      local visible = tonumber(ahead[n + 1]) - back
      put("zset", QUEUE[pr], ahead[n], visible)
      if run then
        run.vis = visible
        touch(run)
      end
      coming[pr] = coming[pr] + 1
      count = math.max(count, n)
    end
  end
  if count < 2 * TAKE_BACK_MAX - 1 then
    set_count("clock", now)
  end
end

-- a lease ended without a settlement; the token goes: whoever held it comes too late
local function lose(run)
  local ended, owner, losses = run.til, run.own, (run.loss or 0) + 1
  run.tok, run.loss, run.vis = nil, losses, ended
  local why = run.cancel or (not has_job(run.job) and JOB_GONE)
  if why then
    run.cancel = why
    finish(run, "cancelled", now, false)
    return idle_end(run, "cancelled", false, why)
  end
  if losses >= A.losses_max then
    local lost = "its lease was lost " .. text(losses) .. " times: its workers died or stalled"
    run.failed, run.err = true, lost
    finish(run, "dead", now, false)
    return idle_end(run, "dead", true, lost)
  end
  add_tried(run, "[" .. text(run.fence or 0) .. "," .. text(ended) .. "," .. cjson.encode(owner) .. "]")
  put_back(run, "ready", ended)
  return idle_end(run, "ready", false, "")
end

local function take_back(can_reclaim)
  if now < count_of("granted") then
    cut_leases()
  end
  if now < count_of("clock") then
    show(count_of("clock"))
  end
  if can_reclaim then
    for _, id in ipairs(call("ZRANGEBYSCORE", fresh(LEASES), "-inf", now, "LIMIT", 0, TAKE_BACK_MAX)) do
      local run = read_run(id)
      if run and run.st == "leased" then
        add_end(run, lose(run))
      else
        drop("zset", LEASES, id)
      end
    end
    sound[LEASES] = true
  end
end

local function lease(run, entry)
  local fence = (run.fence or 0) + 1
  run.st, run.fence, run.tok, run.own = "leased", fence, A.token .. ":" .. text(fence), A.node
  run.til, run.len, run.ent, run.prog, run.q, run.why = now + A.lease_ms, A.lease_ms, entry, nil, nil, nil
  put("zset", LEASES, run.id, run.til)
  touch(run)
end

-- the run that stands at a place, and its body
local function run_at(place)
  local id = string.sub(place, 15)
  local known = runs[id]
  if known ~= nil then
    return known, call("HGET", run_key(id), "b")
  end
  local row = redis.pcall("HMGET", run_key(id), "s", "b")
  local run = not row.err and row[1] and unpacked(id, row[1]) or false
  runs[id] = run
  if not run and (row.err or row[1]) then
    strays[#strays + 1] = run_key(id)
  end
  return run, row[2]
end

-- true if nothing visible is left in the line
local function take_from(pr, ids, texts)
  while #ids < A.limit do
    local wanted = A.limit - #ids
    local places = call("ZRANGEBYSCORE", fresh(QUEUE[pr]), "-inf", now, "LIMIT", 0, wanted)
    if #places == 0 then
      return true
    end
    for _, place in ipairs(places) do
      local run, body = run_at(place)
      if not run or run.st ~= "ready" then
        drop("zset", QUEUE[pr], place)
        leaving[pr] = leaving[pr] + 1
      elseif job_of(run) then
        drop("zset", QUEUE[pr], place)
        unfit[run.id] = spoilt[run.id]
        run.st, run.pr = "leased", pr -- should it stand elsewhere, too: it takes one entry, of this line
        ids[#ids + 1] = run.id
        texts[#ids] = body
      else
        add_end(run, cancel_waiting(run, JOB_GONE))
      end
    end
    if #places < wanted then
      return false
    end
  end
  return false
end

-- {line, first, last, is it empty by now} of each line, as they stand in the caller's order
local function taken(ids, texts)
  local lots = {}
  for n = 0, 2 do
    local pr = (A.first - 1 + n) % 3 + 1
    if n > 0 and pr < A.first then
      pr = n - (3 - A.first)
    end
    local first = #ids + 1
    local is_empty = take_from(pr, ids, texts)
    lots[n + 1] = { pr, first, #ids, is_empty }
  end
  return lots
end

-- Entries cannot be put back as they were, so all that could still be refused is looked at before.
local function lease_all(lots, ids)
  check(LEASES, "zset")
  check(BELL_RUNS, "stream")
  local had = {}
  for pr = 1, 3 do
    had[pr], sound[STREAM[pr]] = call("XLEN", STREAM[pr]), true
  end
  check_all()
  undos = nil -- from here on nothing is
  for _, lot in ipairs(lots) do
    local pr, first, last, is_empty = unpack(lot, 1, 4)
    local entries = last >= first and take_entries(pr, last - first + 1, A.node)
    for n = first, last do
      lease(runs[ids[n]], entries[n - first + 1])
    end
    if is_empty and had[pr] > 0 then
      drop_surplus(pr, A.node)
    end
  end
end

local function look_again(hold)
  local first = false
  for pr = 1, 3 do
    local next_one = call("ZRANGE", fresh(QUEUE[pr]), 0, 0, "WITHSCORES")
    if next_one[2] and (not first or tonumber(next_one[2]) < first) then
      first = tonumber(next_one[2])
    end
  end
  local lease_end = call("ZRANGE", fresh(LEASES), 0, 0, "WITHSCORES")
  if lease_end[2] then
    local ends = math.max(tonumber(lease_end[2]), hold > 0 and now + hold or 0)
    if not first or ends < first then
      first = ends
    end
  end
  return first
end

local before, texts_before, was_used = claimed_before()
if #before > 0 then
  return claimed("ok", before, texts_before, false)
end
if count_of("ends") > A.feed_max then
  return claimed("full", {}, {}, false)
end
local hold = A.hold_ms
if A.expected and now > A.expected + LEAP_MS then -- the clock has leapt since this caller asked last
  hold = math.max(hold, A.grace_ms)
end
promote()
local ids, texts = {}, {}
take_back(hold == 0)
local lots = taken(ids, texts)
tell_gathered()
lease_all(lots, ids)
if #ids > 0 then
  if was_used then
    call("DEL", claim_key)
  end
  call("RPUSH", claim_key, table.concat(ids, " "))
  call("PEXPIRE", claim_key, 2 * A.lease_ms + 60000)
  note_grant(call("ZCARD", fresh(LEASES)) == #ids)
end
return claimed("ok", ids, texts, #ids == 0 and look_again(hold))
