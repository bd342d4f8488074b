-- Names of the keys, the time, and numbers as text, for all scripts.
-- The loader puts the files whose names begin with an underscore before each verb.
local META = KEYS[1]
local PREFIX = string.sub(META, 1, -5)
local HIGH, NORMAL, LOW = PREFIX .. "jobs:high", PREFIX .. "jobs:normal", PREFIX .. "jobs:low"
local QUEUE_1, QUEUE_2, QUEUE_3, LEASES = PREFIX .. "queue:1", PREFIX .. "queue:2", PREFIX .. "queue:3", PREFIX .. "leases"
local LIVE, UNIQUE, FEED, HELD = PREFIX .. "live", PREFIX .. "keys", PREFIX .. "feed", PREFIX .. "held"
local BELL_RUNS, BELL_FEED = PREFIX .. "bell:runs", PREFIX .. "bell:feed"
local JOBS, DUE, SPENT, TOMBS, TOMBS_ORDER = PREFIX .. "jobs", PREFIX .. "due", PREFIX .. "spent", PREFIX .. "tombs",
  PREFIX .. "tombs:order"
local FINISHED_PLAIN, FINISHED_UNCHANGED, FINISHED_DEAD = PREFIX .. "finished:plain", PREFIX .. "finished:unchanged",
  PREFIX .. "finished:dead"
local JOB_COUNTERS, NODES, LOG, HOME, VERSIONS = PREFIX .. "counters", PREFIX .. "nodes", PREFIX .. "log", PREFIX .. "home",
  PREFIX .. "versions"
local NOTES, NOTE_KEYS, NOTE_ENDS = PREFIX .. "notes", PREFIX .. "notes:keys", PREFIX .. "notes:ends"
local A = cmsgpack.unpack(ARGV[1])
-- The fixed keys are those of the default version.  Another one has its own queues, leases, due
-- times, feed, bells and counts, under names with its number; a script works in one version at a time (`enter`), and
-- begins in that of its handle.
local DEFAULT = 2
local OWN = A.v or DEFAULT
local here = OWN
if OWN ~= DEFAULT then
  local own = PREFIX .. "v" .. string.format("%d", OWN) .. ":"
  META, LEASES, HELD, DUE, FEED = own .. "meta", own .. "leases", own .. "held", own .. "due", own .. "feed"
  HIGH, NORMAL, LOW = own .. "jobs:high", own .. "jobs:normal", own .. "jobs:low"
  QUEUE_1, QUEUE_2, QUEUE_3 = own .. "queue:1", own .. "queue:2", own .. "queue:3"
  BELL_RUNS, BELL_FEED = own .. "bell:runs", own .. "bell:feed"
end
local enter -- set behind all that it switches
local STREAM = { HIGH, NORMAL, LOW }
local QUEUE = { QUEUE_1, QUEUE_2, QUEUE_3 }
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
