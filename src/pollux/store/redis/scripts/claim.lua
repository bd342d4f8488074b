#!lua flags=allow-oom
-- Lease up to `limit` runs to `node`, after taking back the leases that ended.
local TAKE_BACK_MAX = 1000 -- leases that one call takes back; the next call goes on
local LEAP_MS = 1000

local function jobs_of(rows)
  local jobs, seen = {}, {}
  for _, row in ipairs(rows) do
    local job = row[1]
    if not seen[job] then
      seen[job] = true
      local found = job_row(job)
      if found then
        jobs[#jobs + 1] = found
      end
    end
  end
  return jobs
end

local function claimed(kind, rows, look_again)
  return finished_call({ kind, rows, jobs_of(rows), get_number("stops"), look_again, now, bell_place(BELL_RUNS) })
end

-- what the same claim got before, as far as its leases still stand
local function claimed_before()
  local rows = {}
  for _, id in ipairs(call("LRANGE", PREFIX .. "claim:" .. A.token, 0, -1)) do
    local run = read_run(id)
    if run and run.st == "leased" and run.until_ms > now and run.tok == A.token .. ":" .. text(run.fence) then
      rows[#rows + 1] = run_row(id)
    end
  end
  return rows
end

-- the clock came back: no lease lasts longer from now than it was given for
local function cut_leases()
  for _, id in ipairs(call("ZRANGE", LEASES, 0, -1)) do
    local row = call("HMGET", run_key(id), "until", "len")
    local ends = now + tonumber(row[2])
    if tonumber(row[1]) > ends then
      call("HSET", run_key(id), "until", ends)
      call("ZADD", LEASES, ends, id)
    end
  end
  call("HSET", META, "granted", now)
end

-- and what had been visible before stays so, in its order
local function show(latest)
  local back = latest - now
  for pr = 1, 3 do
    local ahead = call("ZRANGEBYSCORE", LINE[pr], "(" .. text(now), latest, "WITHSCORES")
    for n = 1, #ahead, 2 do
      local visible = tonumber(ahead[n + 1]) - back
      call("ZADD", LINE[pr], visible, ahead[n])
      call("HSET", run_key(string.sub(ahead[n], 15)), "vis", visible)
      add_entry(pr)
    end
  end
  call("HSET", META, "clock", now)
end

-- a lease ended without a settlement; the token goes: whoever held it comes too late
local function lose(run)
  local key, ended = run_key(run.id), run.until_ms
  call("HDEL", key, "tok", "own", "until", "len")
  call("HSET", key, "loss", run.loss + 1, "vis", ended)
  local why = run.cancel ~= "" and run.cancel or (has_job(run.job) and "" or JOB_GONE)
  if why ~= "" then
    finish(run, "cancelled", now, false, WAITED, { "cancel", why })
    return idle_end(run, "cancelled", false, why)
  end
  if run.loss + 1 >= A.losses_max then
    local lost = "its lease was lost " .. text(run.loss + 1) .. " times: its workers died or stalled"
    finish(run, "dead", now, false, WAITED, { "failed", "1", "err", lost })
    return idle_end(run, "dead", true, lost)
  end
  add_tried(run.id, "[" .. text(run.fence) .. "," .. text(ended) .. "," .. cjson.encode(run.own) .. "]")
  put_back(run, "ready", ended)
  return idle_end(run, "ready", false, "")
end

local function take_back(ends, can_reclaim)
  local stands = call("HMGET", META, "granted", "clock")
  if now < tonumber(stands[1] or 0) then
    cut_leases()
  end
  if now < tonumber(stands[2] or 0) then
    show(tonumber(stands[2]))
  end
  if can_reclaim then
    for _, id in ipairs(call("ZRANGEBYSCORE", LEASES, "-inf", now, "LIMIT", 0, TAKE_BACK_MAX)) do
      ends[#ends + 1] = lose(read_run(id))
    end
  end
end

local function lease(row, id, entry)
  local fence = (tonumber(row[16]) or 0) + 1
  row[10], row[16], row[17] = "leased", text(fence), A.token .. ":" .. text(fence)
  row[18], row[19] = A.node, text(now + A.lease_ms)
  if row[28] then
    call("HDEL", run_key(id), "prog")
    row[28] = false
  end
  call("HSET", run_key(id), "st", "leased", "fence", fence, "tok", row[17], "own", A.node, "until", row[19],
    "len", A.lease_ms, "ent", entry)
  call("ZADD", LEASES, row[19], id)
end

local function take_from(pr, rows, ends)
  while #rows < A.limit do
    local places = call("ZRANGEBYSCORE", LINE[pr], "-inf", now, "LIMIT", 0, A.limit - #rows)
    if #places == 0 then
      return drop_surplus(pr, A.node)
    end
    local taken = {}
    for _, place in ipairs(places) do
      local id = string.sub(place, 15)
      local row = run_row(id)
      if not row then
        call("ZREM", LINE[pr], place)
      elseif has_job(row[1]) then
        taken[#taken + 1] = { place, id, row }
      else
        ends[#ends + 1] = cancel_waiting(read_run(id), JOB_GONE)
      end
    end
    if #taken > 0 then
      local entries = take_entries(pr, #taken, A.node)
      for n, each in ipairs(taken) do
        call("ZREM", LINE[pr], each[1])
        lease(each[3], each[2], entries[n])
        rows[#rows + 1] = each[3]
      end
    end
  end
end

local function look_again(hold)
  local first = false
  for pr = 1, 3 do
    local next_one = call("ZRANGE", LINE[pr], 0, 0, "WITHSCORES")
    if next_one[2] and (not first or tonumber(next_one[2]) < first) then
      first = tonumber(next_one[2])
    end
  end
  local lease_end = call("ZRANGE", LEASES, 0, 0, "WITHSCORES")
  if lease_end[2] then
    local ends = math.max(tonumber(lease_end[2]), hold > 0 and now + hold or 0)
    if not first or ends < first then
      first = ends
    end
  end
  return first
end

local before = claimed_before()
if #before > 0 then
  return claimed("ok", before, false)
end
if get_number("ends") > A.feed_max then
  return claimed("full", {}, false)
end
local hold = A.hold_ms
if A.expected and now > A.expected + LEAP_MS then -- the clock has leapt since this caller asked last
  hold = math.max(hold, A.grace_ms)
end
promote()
local ends, rows = {}, {}
take_back(ends, hold == 0)
for n = 0, 2 do
  local pr = (A.first - 1 + n) % 3 + 1
  if n > 0 and pr < A.first then
    pr = n - (3 - A.first)
  end
  take_from(pr, rows, ends)
end
if #rows > 0 then
  local key = PREFIX .. "claim:" .. A.token
  call("DEL", key)
  for _, row in ipairs(rows) do
    call("RPUSH", key, row[#row])
  end
  call("PEXPIRE", key, 2 * A.lease_ms + 60000)
  note_grant(call("ZCARD", LEASES) == #rows)
end
tell_ends(ends)
return claimed("ok", rows, #rows == 0 and look_again(hold))
