#!lua flags=allow-oom
-- Record plain ends: runs that are done, still stand as they were given to the caller, and leave nothing else behind.
-- The caller wrote down what they are to become; here it is only looked at and put there.  Answers nothing, and does
-- nothing, if one of them stands otherwise: then `settle` is asked.
--
-- Runs stand by (unchanged, job): `groups` are {job, first, last}, and of `ids` the first `plain` are not unchanged.
-- `lots` are runs that end alike: {first, last, how a state begins that is still as it was given, how it is to stand
-- without its place in the order, when it ended, when it was due}.  `orders` tells in which order they were given,
-- if it is another one; `ends` is what the leader is told.
local call, format, sub = redis.call, string.format, string.sub
local A = cmsgpack.unpack(ARGV[1])
local PREFIX = sub(KEYS[1], 1, -5)
local OWN = A.v == 2 and PREFIX or PREFIX .. "v" .. format("%d", A.v) .. ":"
local RUN, META, LEASES, LIVE, FEED = PREFIX .. "run:", OWN .. "meta", OWN .. "leases", PREFIX .. "live", OWN .. "feed"
local JOB_COUNTERS, BELL, HOME = PREFIX .. "counters", OWN .. "bell:feed", PREFIX .. "home"
local STREAM, GROUP = { OWN .. "jobs:high", OWN .. "jobs:normal", OWN .. "jobs:low" }, "scheduler"
local LAST, KEPT = { "last1", "last2", "last3" }, { "kept1", "kept2", "kept3" }
local ids, entries, keys = A.ids, A.entries, {}
local count = #ids

local function as_given()
  for _, lot in ipairs(A.lots) do
    local head = lot[3]
    local upto = #head + 1
    for n = lot[1], lot[2] do
      local key = RUN .. ids[n]
      local state = call("HGET", key, "s")
      if not state or sub(state, 2, upto) ~= head then
        return false
      end
      keys[n] = key
    end
  end
  return true
end

-- Asks each key that is written something that only a key of its kind answers.
local function look()
  if not as_given() then
    return false
  end
  call("ZCARD", LEASES)
  call("ZCARD", LIVE)
  call("ZCARD", JOB_COUNTERS)
  call("HLEN", HOME)
  if A.plain > 0 then
    call("ZCARD", PREFIX .. "finished:plain")
  end
  if A.plain < count then
    call("ZCARD", PREFIX .. "finished:unchanged")
  end
  for _, group in ipairs(A.groups) do
    call("ZCARD", PREFIX .. "live:" .. group[1])
    call("ZCARD", PREFIX .. "history:" .. group[1])
  end
  local fields = { "entries", "ends" }
  for pr = 1, 3 do
    if entries[pr][1] then
      call("XLEN", STREAM[pr])
      fields[#fields + 1], fields[#fields + 2] = LAST[pr], KEPT[pr]
    end
  end
  call("XLEN", BELL)
  return { call("XLEN", FEED), call("HGET", PREFIX .. "meta", "seq"), call("HMGET", META, unpack(fields)) }
end

local is_sound, found = pcall(look)
if not is_sound or not found then
  return false
end
local seq, told = tonumber(found[2] or 0), found[3]
local counts = { "entries", format("%d", tonumber(told[1] or 0) + 1), "ends", format("%d", tonumber(told[2] or 0) + count) }

-- First, while nothing else is written: if somebody else wrote an entry that is ahead, `settle` sees to it (`tell_now`).
local added = redis.pcall("XADD", FEED, counts[2] .. "-0", "ends", format("%d", count), "entry", A.ends)
if type(added) == "table" and added.err then
  return false
end

-- Acknowledged and deleted together.  What lies before the first entry that is still pending goes at once; of what lies
-- behind it the entry that was delivered last stays: see `_streams.lua`.
local function drop_entries(pr, gone, last, kept)
  local stream = STREAM[pr]
  redis.pcall("XACK", stream, GROUP, unpack(gone))
  local pending = redis.pcall("XPENDING", stream, GROUP, "-", "+", "1")
  if pending.err or not last or last == "" then -- the stream is not the one that it was
    call("XDEL", stream, unpack(gone))
    return kept
  end
  local first = pending[1] and pending[1][1]
  if not first then
    local ms, number = string.match(last, "^(%d+)-(%d+)$")
    call("XTRIM", stream, "MINID", ms .. "-" .. format("%d", number + 1))
    return ""
  end
  if call("XTRIM", stream, "MINID", first) < #gone then
    local others = {}
    for _, entry in ipairs(gone) do
      if entry == last then
        kept = entry
      else
        others[#others + 1] = entry
      end
    end
    if #others > 0 then
      call("XDEL", stream, unpack(others))
    end
  end
  return kept
end

local orders, past, live = A.orders, {}, {}
for _, lot in ipairs(A.lots) do
  local final, fin, due = lot[4], lot[5], lot[6]
  for n = lot[1], lot[2] do
    local id, order = ids[n], format("%014d", seq + (orders[n] or n))
    call("HSET", keys[n], "s", final .. order)
    past[2 * n - 1], past[2 * n], live[n] = "0", fin .. order .. id, due .. id
  end
end
call("ZREM", LEASES, unpack(ids))
call("ZREM", LIVE, unpack(live))
if A.plain > 0 then
  call("ZADD", PREFIX .. "finished:plain", unpack(past, 1, 2 * A.plain))
end
if A.plain < count then
  call("ZADD", PREFIX .. "finished:unchanged", unpack(past, 2 * A.plain + 1, 2 * count))
end
for _, group in ipairs(A.groups) do
  local job, first, last = group[1], group[2], group[3]
  call("ZREM", PREFIX .. "live:" .. job, unpack(live, first, last))
  call("ZADD", PREFIX .. "history:" .. job, unpack(past, 2 * first - 1, 2 * last))
  call("ZINCRBY", JOB_COUNTERS, format("%d", last - first + 1), job)
end
local place = 3
for pr = 1, 3 do
  if entries[pr][1] then
    local before = told[place + 1] or ""
    local kept = drop_entries(pr, entries[pr], told[place], before)
    if kept ~= before then
      counts[#counts + 1], counts[#counts + 2] = KEPT[pr], kept
    end
    place = place + 2
  end
end
if OWN == PREFIX then
  counts[#counts + 1], counts[#counts + 2] = "seq", format("%d", seq + count)
else
  call("HSET", PREFIX .. "meta", "seq", format("%d", seq + count))
end
call("HSET", META, unpack(counts))
if found[1] == 0 then -- a leader that still has something to read does not sleep
  call("XADD", BELL, "MAXLEN", "~", "1000", "*", "kind", "feed")
end
return { cmsgpack.pack(true), call("HINCRBY", HOME, "count", "1") }
