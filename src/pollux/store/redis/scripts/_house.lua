-- What do all scripts share?  The names of the keys, the time, and how numbers are written.
-- The loader puts the files whose names begin with an underscore before each verb.
local META = KEYS[1]
local PREFIX = string.sub(META, 1, -5)
local HIGH, NORMAL, LOW = PREFIX .. "jobs:high", PREFIX .. "jobs:normal", PREFIX .. "jobs:low"
local LINE_1, LINE_2, LINE_3, LEASES = PREFIX .. "line:1", PREFIX .. "line:2", PREFIX .. "line:3", PREFIX .. "leases"
local LIVE, UNIQUE, FEED, HELD = PREFIX .. "live", PREFIX .. "keys", PREFIX .. "feed", PREFIX .. "held"
local BELL_RUNS, BELL_FEED = PREFIX .. "bell:runs", PREFIX .. "bell:feed"
local JOBS, DUE, SPENT, GONE, GONE_LINE = PREFIX .. "jobs", PREFIX .. "due", PREFIX .. "spent", PREFIX .. "gone",
  PREFIX .. "gone:line"
local SHELF_PLAIN, SHELF_UNCHANGED, SHELF_DEAD = PREFIX .. "shelf:plain", PREFIX .. "shelf:unchanged",
  PREFIX .. "shelf:dead"
local TALLY, NODES, LOG, HOME, VERSIONS = PREFIX .. "tally", PREFIX .. "nodes", PREFIX .. "log", PREFIX .. "home",
  PREFIX .. "versions"
local NOTES, NOTE_KEYS, NOTE_ENDS = PREFIX .. "notes", PREFIX .. "notes:keys", PREFIX .. "notes:ends"
local A = cmsgpack.unpack(ARGV[1])
-- The fixed keys are those of the version that stands where nothing is said.  Another one has its own lines, leases, due
-- times, feed, bells and counts, under names with its number; a script works in one version at a time (`enter`), and
-- begins in that of its handle.
local DEFAULT = 2
local OWN = A.v and A.v ~= 0 and A.v or DEFAULT
local here = OWN
if OWN ~= DEFAULT then
  local own = PREFIX .. "v" .. string.format("%d", OWN) .. ":"
  META, LEASES, HELD, DUE, FEED = own .. "meta", own .. "leases", own .. "held", own .. "due", own .. "feed"
  HIGH, NORMAL, LOW = own .. "jobs:high", own .. "jobs:normal", own .. "jobs:low"
  LINE_1, LINE_2, LINE_3 = own .. "line:1", own .. "line:2", own .. "line:3"
  BELL_RUNS, BELL_FEED = own .. "bell:runs", own .. "bell:feed"
end
local enter -- set behind all that it switches
local STREAM = { HIGH, NORMAL, LOW }
local LINE = { LINE_1, LINE_2, LINE_3 }
local GROUP = "scheduler"
local BELL_MAX = 1000 -- rings that a sleeper can catch up with; a ring is a hint, not work
local PAY_MAX = 1000 -- entries that one call writes for runs that became visible by themselves

-- an error says which key it is about
local function call(...)
  local found = redis.pcall(...)
  if type(found) == "table" and found.err then
    local _, key = ...
    if string.find(found.err, "WRONGTYPE", 1, true) then
      found = { err = "WRONGTYPE the key " .. tostring(key) .. " is a " .. redis.pcall("TYPE", key).ok }
    end
    error(found)
  end
  return found
end

local function clock()
  if A.now then
    return A.now
  end
  local time = call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now = clock()

-- a number as text, and as text of one length, which sorts as the number does
local function text(number)
  return string.format("%d", number)
end

local function key_of(version, name)
  return version == DEFAULT and PREFIX .. name or PREFIX .. "v" .. text(version) .. ":" .. name
end

local padded = {} -- many runs of a batch are due at the same time

local function pad(number)
  local known = padded[number]
  if not known then
    known = string.format("%015d", number + 1e14)
    padded[number] = known
  end
  return known
end

local function pad_seq(number)
  return string.format("%014d", number)
end

-- where the bell stands: who read nothing there waits for what comes after
local function bell_place(bell)
  local last = call("XREVRANGE", bell, "+", "-", "COUNT", 1)
  return last[1] and last[1][1] or "0-0"
end

-- what a beat has left, unpacked; nothing if somebody else wrote it
local function node_of(packed)
  local is_whole, node = pcall(cmsgpack.unpack, packed)
  local is_ours = is_whole and type(node) == "table" and type(node[1]) == "number" and type(node[2]) == "number"
  return is_ours and node or nil
end
