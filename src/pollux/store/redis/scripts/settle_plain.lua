#!lua flags=allow-oom
-- Record plain ends: runs that are done, still stand as they were given to the caller, and leave nothing else behind.
-- The caller wrote down what each is to become (`finals`, without its place in the order) and what the leader is told
-- (`ends`); here it is only compared and put there.  Answers nothing, and does nothing, if one of them stands otherwise:
-- then `settle` is asked.  Runs stand by (unchanged, job), with the order in which they were given (`orders`); `groups` are
-- {job, first, last}.
local call, format = redis.call, string.format
local A = cmsgpack.unpack(ARGV[1])
local PREFIX = string.sub(KEYS[1], 1, -5)
local OWN = A.v == 2 and PREFIX or PREFIX .. "v" .. format("%d", A.v) .. ":"
local RUN, META, LEASES, LIVE, FEED = PREFIX .. "run:", OWN .. "meta", OWN .. "leases", PREFIX .. "live", OWN .. "feed"
local SHELVES = { PREFIX .. "shelf:plain", PREFIX .. "shelf:unchanged" }
local TALLY, BELL, HOME = PREFIX .. "tally", OWN .. "bell:feed", PREFIX .. "home"
local STREAM, GROUP = { OWN .. "jobs:high", OWN .. "jobs:normal", OWN .. "jobs:low" }, "scheduler"
local ids, count, live, past = A.ids, #A.ids, A.live, {}

local function is(key, kind)
  local found = call("TYPE", key).ok
  return found == kind or found == "none"
end

local function look()
  local states = A.states
  for n = 1, count do
    if call("HGET", RUN .. ids[n], "s") ~= states[n] then
      return false
    end
  end
  local is_sound = is(LEASES, "zset") and is(LIVE, "zset") and is(TALLY, "zset") and is(BELL, "stream") and is(HOME, "hash")
    and (A.plain == 0 or is(SHELVES[1], "zset")) and (A.plain == count or is(SHELVES[2], "zset"))
  for _, group in ipairs(A.groups) do
    is_sound = is_sound and is(PREFIX .. "live:" .. group[1], "zset") and is(PREFIX .. "past:" .. group[1], "zset")
  end
  for pr = 1, 3 do
    is_sound = is_sound and (#A.entries[pr] == 0 or is(STREAM[pr], "stream"))
  end
  if not is_sound then
    return false
  end
  local counts = call("HMGET", META, "entries", "ends", "last1", "last2", "last3", "kept1", "kept2", "kept3", "seq")
  local seq = OWN == PREFIX and counts[9] or (OWN ~= PREFIX and call("HGET", PREFIX .. "meta", "seq"))
  return { seq, call("XLEN", FEED), unpack(counts) }
end

local is_sound, found = pcall(look)
if not is_sound or not found then
  return false
end
local seq, counts = tonumber(found[1] or 0), {}

local function set(field, value)
  counts[#counts + 1], counts[#counts + 2] = field, value
end

-- Acknowledged and deleted together.  What lies before the first entry that is still pending goes at once; of what lies
-- behind it the entry that was delivered last stays: see `_streams.lua`.
local function drop_entries(pr, entries)
  local stream, last, kept = STREAM[pr], found[4 + pr], found[7 + pr] or ""
  redis.pcall("XACK", stream, GROUP, unpack(entries))
  local pending = redis.pcall("XPENDING", stream, GROUP, "-", "+", 1)
  if pending.err or not last or last == "" then -- the stream is not the one that it was
    call("XDEL", stream, unpack(entries))
    return
  end
  local upto = pending[1] and pending[1][1]
  if not upto then
    local ms, number = string.match(last, "^(%d+)-(%d+)$")
    upto = ms .. "-" .. format("%d", number + 1)
  end
  local gone = call("XTRIM", stream, "MINID", upto)
  if not pending[1] then
    kept = ""
  elseif gone < #entries then
    local others = {}
    for _, entry in ipairs(entries) do
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
  if kept ~= (found[7 + pr] or "") then
    set("kept" .. pr, kept)
  end
end

local finals, fins, orders = A.finals, A.fins, A.orders
for n = 1, count do
  local order = format("%014d", seq + orders[n])
  call("HSET", RUN .. ids[n], "s", finals[n] .. order)
  past[2 * n - 1], past[2 * n] = "0", fins[n] .. order .. ids[n]
end
call("ZREM", LEASES, unpack(ids))
call("ZREM", LIVE, unpack(live))
if A.plain > 0 then
  call("ZADD", SHELVES[1], unpack(past, 1, 2 * A.plain))
end
if A.plain < count then
  call("ZADD", SHELVES[2], unpack(past, 2 * A.plain + 1, 2 * count))
end
for _, group in ipairs(A.groups) do
  local job, first, last = group[1], group[2], group[3]
  call("ZREM", PREFIX .. "live:" .. job, unpack(live, first, last))
  call("ZADD", PREFIX .. "past:" .. job, unpack(past, 2 * first - 1, 2 * last))
  call("ZINCRBY", TALLY, last - first + 1, job)
end
for pr = 1, 3 do
  if #A.entries[pr] > 0 then
    drop_entries(pr, A.entries[pr])
  end
end
local entry = tonumber(found[3] or 0) + 1
set("entries", entry)
set("ends", tonumber(found[4] or 0) + count)
if OWN == PREFIX then
  set("seq", seq + count)
else
  call("HSET", PREFIX .. "meta", "seq", seq + count)
end
call("HSET", META, unpack(counts))
call("XADD", FEED, format("%d-0", entry), "ends", count, "entry", A.ends)
if found[2] == 0 then -- a leader that still has something to read does not sleep
  call("XADD", BELL, "MAXLEN", "~", 1000, "*", "kind", "feed")
end
return { cmsgpack.pack(true), call("HINCRBY", HOME, "count", 1) }
