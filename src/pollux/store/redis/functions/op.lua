-- The operation at work: its arguments and time, the names of its keys, and what it gathers until it is written.
--
-- Modules and functions are made once, when the library is loaded; outside of functions nothing of Lua's own is there then
-- but its syntax.  One call of a function is one operation; `op.begin` makes its state anew.  An operation works in one version at a time (`op.enter`), and begins in that of its caller:
--
--   op.args                what the caller sent
--   op.now                 milliseconds, by the server's clock unless the caller names a time
--   op.keys                names of the keys that all versions share
--   op.here, op.part       names of the keys of the version at work, and what is gathered for it
local op = { DEFAULT = 2 }
local DEFAULT = op.DEFAULT
local NAMES_MAX = 100 -- prefixes, and versions of each, whose names are remembered
local SHARED = {
  live = "live", unique = "keys", jobs = "jobs", spent = "spent", tombs = "tombs", tombs_order = "tombs:order",
  finished_plain = "finished:plain", finished_unchanged = "finished:unchanged", finished_dead = "finished:dead",
  counters = "counters", notes = "notes", note_keys = "notes:keys", note_ends = "notes:ends", nodes = "nodes", log = "log",
  home = "home", unfinished = "unfinished", versions = "versions",
  run = "run:", job = "job:", live_of = "live:", claim = "claim:", -- behind these comes an id
}
local OF_VERSION = {
  meta = "meta", leases = "leases", held = "held", due = "due", feed = "feed", bell_runs = "bell:runs",
  bell_feed = "bell:feed",
}
local QUEUES, STREAMS = { "queue:1", "queue:2", "queue:3" }, { "jobs:high", "jobs:normal", "jobs:low" }
local known, known_count = {}, 0

-- an error names the key that it is about
function op.call(...)
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

local call = op.call

-- a number as text, and as text of one length, which sorts as the number does
function op.text(number)
  return string.format("%d", number)
end

local padded, padded_count = {}, 0 -- many runs are due at the same time

function op.pad(number)
  local found = padded[number]
  if not found then
    if padded_count >= 1000 then
      padded, padded_count = {}, 0
    end
    found = string.format("%015d", number + 1e14)
    padded[number], padded_count = found, padded_count + 1
  end
  return found
end

function op.pad_seq(number)
  return string.format("%014d", number)
end

-- is it a number that counts exactly, or a value of that type?
function op.is_of(kind, value)
  return type(value) == kind and (kind ~= "number" or (value % 1 == 0 and math.abs(value) < 1e15))
end

local function named(beginning, endings)
  local names = {}
  for name, ending in pairs(endings) do
    names[name] = beginning .. ending
  end
  return names
end

local function keys_of(prefix)
  local keys = known[prefix]
  if not keys then
    if known_count >= NAMES_MAX then
      known, known_count = {}, 0
    end
    keys = named(prefix, SHARED)
    keys.prefix, keys.of_versions, keys.version_count = prefix, {}, 0
    known[prefix], known_count = keys, known_count + 1
  end
  return keys
end

-- the names of the keys that a version has for itself: those of the default one are the fixed ones
function op.keys_in(version)
  local keys = op.keys
  local names = keys.of_versions[version]
  if not names then
    if keys.version_count >= NAMES_MAX then
      keys.of_versions, keys.version_count = {}, 0
    end
    local beginning = version == DEFAULT and keys.prefix or keys.prefix .. "v" .. op.text(version) .. ":"
    names = named(beginning, OF_VERSION)
    names.version = version
    names.queues = named(beginning, QUEUES)
    names.streams = named(beginning, STREAMS)
    keys.of_versions[version], keys.version_count = names, keys.version_count + 1
  end
  return names
end

local function server_time()
  local time = call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

function op.begin(key, packed)
  local args = cmsgpack.unpack(packed)
  args.v = args.v or DEFAULT
  op.args, op.keys, op.now = args, keys_of(string.sub(key, 1, -5)), args.now or server_time()
  op.parts, op.part_count, op.here, op.part, op.at_new_part = {}, 0, nil, nil, nil
  op.gathered = {} -- batches of sorted sets and hashes, by key: see `writes`
  op.sound = {} -- keys that are of the right type
  op.undos = {} -- what `writes.flush` has written over, the last one last; false: nothing is undone from here on
  op.writers = {} -- what else is written at the end, for this operation alone
  op.counters, op.new_counters = {}, {} -- of `meta`, by version
  op.used = {} -- versions that are there from now on, and what was noted of them
  op.asked = {} -- owners of leased runs that were asked to stop
  op.lines = {} -- of the audit log
  op.jobs, op.job_versions = {}, {} -- jobs, and versions of jobs, by id; false: there is none
  op.remembered, op.forgotten = 0, 0 -- deleted jobs that are noted, and that are forgotten for it
  op.has_swept = false -- expired notes
  op.runs = {} -- with the changes of this operation; false: there is none
  op.touched = {} -- those to be written; false: to be deleted
  op.bodies, op.packed = {}, {} -- of runs: inputs to be written, states that were written
  op.unread_fields = {} -- of runs of which something was left out when they were read
  op.counter_changes = {} -- finished runs of jobs
  op.came_leased = {} -- moved runs that take their stream entries last
  op.healed = {} -- streams that had lost their group
  op.enter(args.v)
end

local function new_part()
  return {
    coming = { 0, 0, 0 }, leaving = { 0, 0, 0 }, spent = { {}, {}, {} }, -- entries of streams, by priority
    ready_change = 0, -- how many more runs are in the queues than before
    rings_runs = false, rings_feed = false,
    entries = {}, -- of the feed, to be written
    ends = {}, arrived = {}, -- what goes into one entry each
  }
end

-- From here on the operation works in another version.
function op.enter(version)
  if op.here and op.here.version == version then
    return
  end
  local part = op.parts[version]
  op.here = op.keys_in(version)
  op.part = part or new_part()
  if not part then
    op.parts[version], op.part_count = op.part, op.part_count + 1
    if op.at_new_part then
      op.at_new_part()
    end
  end
end

-- in each version that this operation has been in, mostly one
function op.each_part(work)
  if op.part_count == 1 then
    return work()
  end
  local before, versions = op.here.version, {}
  for version in pairs(op.parts) do
    versions[#versions + 1] = version
  end
  table.sort(versions)
  for _, version in ipairs(versions) do
    op.enter(version)
    work()
  end
  op.enter(before)
end

-- the last id of a bell: a caller that found nothing waits for entries after it
function op.bell_place(bell)
  local last = call("XREVRANGE", bell, "+", "-", "COUNT", 1)
  return last[1] and last[1][1] or "0-0"
end

return op
