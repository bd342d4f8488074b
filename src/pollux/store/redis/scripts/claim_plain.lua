#!lua flags=allow-oom
-- The plain claim: all available runs are of one queue and were never delivered, and there is nothing else to
-- do.  Such a run's state begins as READY says, and all of a claim are leased by the same words before what remains.
-- Answers nothing, and does nothing, if there is more to it: then all of `claim` follows.  `claim` begins with it; alone
-- it goes with a wait, and is good until then: see `ear.py`.
--
--   ready   [size] z=1 st=ready                                      job=... due=... ... q=...
--   leased  [size] z=2 st=leased fence tok own til len ent=<entry>   job=... due=... ... q=...
--
-- Every claim pays for each word of this: numbers go to the server as texts, which are written once.
local call, format, sub, byte, char = redis.call, string.format, string.sub, string.byte, string.char
local A = cmsgpack.unpack(ARGV[1])
local READY, READY_END = "\161z\1\162st\165ready", 14
local MORE, SIZE_MAX = 6, 143 -- fields that a lease adds; the head of the biggest map with a head of one byte
local LEAP_MS = 1000
local now = A.now
if not now then
  local time = call("TIME")
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if A.hold_ms > 0 or (A.expected and now > A.expected + LEAP_MS) or (A["until"] and now > A["until"]) then
  return
end
local PREFIX = sub(KEYS[1], 1, -5)
local OWN = (A.v or 2) == 2 and PREFIX or PREFIX .. "v" .. format("%d", A.v) .. ":"
local RUN, META, LEASES, HOME = PREFIX .. "run:", OWN .. "meta", OWN .. "leases", PREFIX .. "home"
local QUEUE, CLAIM = { OWN .. "queue:1", OWN .. "queue:2", OWN .. "queue:3" }, PREFIX .. "claim:" .. A.token
local STREAM, LAST = { "jobs:high", "jobs:normal", "jobs:low" }, { "last1", "last2", "last3" }
local at, limit = format("%d", now), format("%d", A.limit)
local is_empty = {} -- lines of which that is known

-- the places of those whose turn it is, and their line; nothing if more than one line would give
local function first_places()
  local places, line
  for n = 0, 2 do
    local pr = (A.first - 1 + n) % 3 + 1
    if n > 0 and pr < A.first then
      pr = n - (3 - A.first)
    end
    if not places then
      places, line = call("ZRANGEBYSCORE", QUEUE[pr], "-inf", at, "LIMIT", "0", limit), pr
      if #places == 0 then
        places, is_empty[pr] = nil, true
      end
    elseif #places < A.limit then
      is_empty[pr] = call("ZCOUNT", QUEUE[pr], "-inf", at) == 0
      if not is_empty[pr] then
        return
      end
    end
  end
  return places, line
end

-- is there nothing to be done before runs are handed out?
local function is_quiet(found)
  local seen = found[2] or "0"
  if tonumber(found[1] or 0) > A.feed_max or now < tonumber(seen) or now < tonumber(found[3] or 0)
    or now < tonumber(found[4] or 0) then
    return false
  end
  for pr = 1, 3 do
    local owed = found[4 + pr]
    if (owed and owed ~= "0" and tonumber(owed) > 0)
      or (not is_empty[pr] and call("ZCOUNT", QUEUE[pr], "(" .. seen, at) > 0) then
      return false
    end
  end
  return call("ZCOUNT", LEASES, "-inf", at) == 0
end

local function job_of(state)
  local size, from = byte(state, 18) - 160, 19
  if size > 31 then -- longer than a short text
    size, from = byte(state, 19), 20
    if byte(state, 18) ~= 217 then
      return false
    end
  end
  return sub(state, from, from + size - 1)
end

local ids, keys, states, bodies, jobs, known = {}, {}, {}, {}, {}, {}

local function look()
  if call("EXISTS", CLAIM) == 1 or call("HEXISTS", HOME, "count") == 0 then
    return
  end
  local places, pr = first_places()
  local counts = places and call("HMGET", META, "ends", "seen", "granted", "clock", "owed1", "owed2", "owed3", "stops")
  if not counts or not is_quiet(counts) then
    return
  end
  for n = 1, #places do
    local id = sub(places[n], 15)
    local key = RUN .. id
    local row = call("HMGET", key, "s", "b")
    local state = row[1]
    if not state or sub(state, 2, READY_END - 1) ~= READY or byte(state, 1) + MORE > SIZE_MAX then
      return
    end
    local job = job_of(state)
    if not known[job] then
      local found = job and call("HMGET", PREFIX .. "job:" .. job, "rev", "next", "last", "mem", "def", "v")
      if not found or not found[1] then
        return
      end
      known[job] = true
      jobs[#jobs + 1] = { job, tonumber(found[1]) or 0, tonumber(found[2]) or false, tonumber(found[3]) or false,
        found[4] ~= "" and found[4], found[5], tonumber(found[6]) or 2 }
    end
    ids[n], keys[n], states[n], bodies[n] = id, key, state, row[2] or ""
  end
  local stops = OWN == PREFIX and counts[8] or (OWN ~= PREFIX and call("HGET", PREFIX .. "meta", "stops"))
  return { places, pr, tonumber(stops or 0) }
end

local is_sound, found = pcall(look)
if not is_sound or not found then
  return
end
local places, pr, count = found[1], found[2], #ids
local stream, entries = OWN .. STREAM[pr], {}

local function read(wanted)
  local given = redis.pcall("XREADGROUP", "GROUP", "scheduler", A.node, "COUNT", wanted, "STREAMS", stream, ">")
  if given and given.err then
    return false
  end
  local new = given and given[1] and given[1][2] or {}
  for n = 1, #new do
    entries[#entries + 1] = new[n][1]
  end
  return true
end

if not read(count == A.limit and limit or count) then -- the stream is gone, or its group
  return
end
for _ = #entries + 1, count do -- somebody took them away: written anew, and delivered
  call("XADD", stream, "*", "at", at)
end
if #entries < count then
  read(count - #entries)
end
local pack = cmsgpack.pack
local lease = "\161z\2\162st\166leased\165fence\1\163tok" .. pack(A.token .. ":1") .. "\163own" .. pack(A.node) .. "\163til"
  .. pack(now + A.lease_ms) .. "\163len" .. pack(A.lease_ms) .. "\163ent"
local til, leases, answer = format("%d", now + A.lease_ms), {}, {}
for n = 1, count do
  local state, entry, id = states[n], entries[n], ids[n]
  local leased = char(byte(state, 1) + MORE) .. lease .. char(160 + #entry) .. entry .. sub(state, READY_END)
  call("HSET", keys[n], "s", leased)
  leases[2 * n - 1], leases[2 * n] = til, id
  answer[3 * n - 1], answer[3 * n], answer[3 * n + 1] = id, leased, bodies[n]
end
call("ZREM", QUEUE[pr], unpack(places))
call("ZADD", LEASES, unpack(leases))
call("RPUSH", CLAIM, table.concat(ids, " "))
call("PEXPIRE", CLAIM, format("%d", 2 * A.lease_ms + 60000))
call("HSET", META, "seen", at, "granted", at, "clock", at, LAST[pr], entries[#entries])
answer[1] = pack({ "ok", jobs, found[3], false, now, "0-0", {}, {} })
return { answer, call("HINCRBY", HOME, "count", "1") }
