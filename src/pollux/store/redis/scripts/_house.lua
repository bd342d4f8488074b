-- What do all scripts share?  The names of the keys, the time, and how answers, entries and rings are written.
-- The loader puts the files whose names begin with an underscore before each verb, in the order of their names.
local META, HIGH, NORMAL, LOW, LINE_1, LINE_2, LINE_3, LEASES, LIVE, UNIQUE, FEED, BELL_RUNS, BELL_FEED, JOBS, DUE,
  SPENT, GONE, GONE_LINE, SHELF_PLAIN, SHELF_UNCHANGED, SHELF_DEAD, TALLY, NOTES, NOTE_KEYS, NOTE_ENDS, NODES, LOG,
  HOME = unpack(KEYS)
local PREFIX = string.sub(META, 1, -5)
local STREAM = { HIGH, NORMAL, LOW }
local LINE = { LINE_1, LINE_2, LINE_3 }
local GROUP = "scheduler"
local BELL_MAX = 1000 -- rings that a sleeper can catch up with; a ring is a hint, not work
local PAY_MAX = 1000 -- entries that one call writes for runs that became visible by themselves
local A = cmsgpack.unpack(ARGV[1])
local call = redis.call

local function clock()
  if A.now then
    return A.now
  end
  local time = call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now = clock()

-- A script that may write answers its value and how many writes there were: whoever is told less later knows that
-- writes were lost.  It also makes each call a write, so that the replicas' WAIT means all that came before it.
local function counted(value)
  if WRITES then
    return { value, call("HINCRBY", HOME, "count", 1) }
  end
  return value
end

local function answer(value)
  return counted(cmsgpack.pack(value))
end

-- a number as text, and as text of one length, which sorts as the number does
local function text(number)
  return string.format("%.0f", number)
end

local function pad(number)
  return string.format("%015.0f", number + 1e14)
end

local function pad_seq(number)
  return string.format("%014.0f", number)
end

local function next_seq()
  return call("HINCRBY", META, "seq", 1)
end

local function get_number(field)
  return tonumber(call("HGET", META, field) or 0)
end

-- the bell, rung once at the end of a call
local rings = { runs = false, feed = false, asked = false }

local function ring()
  if rings.runs then
    call("XADD", BELL_RUNS, "MAXLEN", "~", BELL_MAX, "*", "kind", "runs")
  end
  if rings.feed then
    call("XADD", BELL_FEED, "MAXLEN", "~", BELL_MAX, "*", "kind", "feed")
  end
  for owner in pairs(rings.asked or {}) do
    call("XADD", BELL_RUNS, "MAXLEN", "~", BELL_MAX, "*", "kind", "asked", "node", owner)
  end
end

-- where the bell stands: who read nothing there waits for what comes after
local function bell_place(bell)
  local last = call("XREVRANGE", bell, "+", "-", "COUNT", 1)
  return last[1] and last[1][1] or "0-0"
end

-- the feed
local function tell(entry)
  local ends = entry.ends and #entry.ends or 0
  call("XADD", FEED, text(call("HINCRBY", META, "entries", 1)) .. "-0", "ends", ends, "entry", cmsgpack.pack(entry))
  if ends > 0 then
    call("HINCRBY", META, "ends", ends)
  end
  rings.feed = true
end

local function tell_ends(ends)
  if #ends > 0 then
    tell({ type = "ended", ends = ends })
  end
end

local function tell_arrived(ids)
  if #ids > 0 then
    tell({ type = "arrived", run_ids = ids })
  end
end
