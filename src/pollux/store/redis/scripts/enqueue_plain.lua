#!lua
-- Accept plain runs: new, ready, visible at the same time, of one priority, without a key.  Runs that are to stand alike are
-- a group: {job, first, last, how they stand (without their place in the order), due time}.  Answers nothing, and does
-- nothing, if there is more to it: then `enqueue` is asked.
local call, format = redis.call, string.format
local A = cmsgpack.unpack(ARGV[1])
local PREFIX = string.sub(KEYS[1], 1, -5)
local OWN = A.v == 2 and PREFIX or PREFIX .. "v" .. format("%d", A.v) .. ":"
local RUN, META, LIVE, HOME, BELL = PREFIX .. "run:", OWN .. "meta", PREFIX .. "live", PREFIX .. "home", OWN .. "bell:runs"
local QUEUE, STREAM = OWN .. "queue:" .. A.pr, OWN .. "jobs:" .. ({ "high", "normal", "low" })[A.pr]
local ids, count, keys = A.ids, #A.ids, {}
local now = A.now
if not now then
  local time = call("TIME")
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function is(key, kind)
  local found = call("TYPE", key).ok
  return found == kind or found == "none"
end

-- nobody became visible by himself since somebody looked
local function is_seen(found)
  local seen = tonumber(found[1] or 0)
  if now < seen then
    return false
  end
  local since = "(" .. format("%d", seen)
  for pr = 1, 3 do
    if tonumber(found[1 + pr] or 0) > 0 or call("ZCOUNT", OWN .. "queue:" .. pr, since, now) > 0 then
      return false
    end
  end
  return true
end

local function look()
  for n = 1, count do
    keys[n] = RUN .. ids[n]
  end
  local waiting = call("ZCARD", OWN .. "held") + count
  for pr = 1, 3 do
    waiting = waiting + call("ZCARD", OWN .. "queue:" .. pr)
  end
  if waiting > A.ready_max or call("EXISTS", unpack(keys)) > 0 then
    return false
  end
  for _, group in ipairs(A.groups) do
    local job = call("HMGET", PREFIX .. "job:" .. group[1], "rev", "v")
    if not job[1] or tonumber(job[2] or 2) ~= A.v or not is(PREFIX .. "live:" .. group[1], "zset") then
      return false
    end
  end
  local counts = call("HMGET", META, "seen", "owed1", "owed2", "owed3", "seq")
  return is(LIVE, "zset") and is(STREAM, "stream") and is(BELL, "stream") and is(HOME, "hash")
    and is_seen(counts) and { OWN == PREFIX and counts[5] or (OWN ~= PREFIX and call("HGET", PREFIX .. "meta", "seq")) }
end

local is_sound, found = pcall(look)
if not is_sound or not found then
  return false
end
local seq, at, visible = tonumber(found[1] or 0), format("%d", now), format("%d", A.vis)
local bodies, line, live, is_visible = A.bodies, {}, {}, A.vis <= now
for _, group in ipairs(A.groups) do
  local state, due = group[4], group[5]
  for n = group[2], group[3] do
    local id, body, order = ids[n], bodies[n], format("%014d", seq + n)
    if body then
      call("HSET", keys[n], "s", state .. order, "b", body)
    else
      call("HSET", keys[n], "s", state .. order)
    end
    line[2 * n - 1], line[2 * n] = visible, order .. id
    live[2 * n - 1], live[2 * n] = "0", due .. id
  end
end
if is_visible then
  for _ = 1, count do
    call("XADD", STREAM, "*", "at", at)
  end
end
call("ZADD", QUEUE, unpack(line))
call("ZADD", LIVE, unpack(live))
for _, group in ipairs(A.groups) do
  call("ZADD", PREFIX .. "live:" .. group[1], unpack(live, 2 * group[2] - 1, 2 * group[3]))
end
if OWN == PREFIX then
  call("HSET", META, "seq", seq + count, "seen", at)
else
  call("HSET", PREFIX .. "meta", "seq", seq + count)
  call("HSET", META, "seen", at)
end
call("XADD", BELL, "MAXLEN", "~", 1000, "*", "kind", "runs")
return { cmsgpack.pack(true), call("HINCRBY", HOME, "count", 1) }
