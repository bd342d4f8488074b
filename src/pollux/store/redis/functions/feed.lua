-- The feed of each version, and the bells: what is written for the leader, and what wakes those that wait.
local feed = {}
local call, text, DEFAULT = op.call, op.text, op.DEFAULT
local check, count_of, set_count = writes.check, writes.count_of, writes.set_count
local BELL_MAX = 1000 -- rings that a sleeper can catch up with; a ring is a hint, not work
local BELL_LEFT_MS = 60000 -- a bell that is rung where no version is goes by itself when all have heard it
local DIGITS_MAX = 15 -- of a number from which we count on: Lua counts exactly up to 2^53
local FIELDS_MAX = 4000

-- an entry for the leader of the version at work
function feed.add(entry)
  local id, ends = count_of("entries") + 1, entry.ends and #entry.ends or 0
  set_count("entries", id)
  set_count("ends", count_of("ends") + ends)
  table.insert(op.part.entries, { text(id) .. "-0", ends, cmsgpack.pack(entry) })
  op.part.rings_feed = true
end

-- for the leaders of all versions that are there, and of our own: its leader may be about to come
function feed.add_to_all(entry)
  local before, own = op.here.version, op.args.v
  versions.note(own)
  for _, version in ipairs(versions.there(own)) do
    op.enter(version)
    feed.add(entry)
  end
  op.enter(before)
end

-- the end of an attempt, and a run that came to the gate, in the version of the run
function feed.add_end(run, value)
  op.enter(run.v or DEFAULT)
  local ends = op.part.ends
  ends[#ends + 1] = value
end

function feed.add_arrived(run)
  op.enter(run.v or DEFAULT)
  local arrived = op.part.arrived
  arrived[#arrived + 1] = run.id
end

local function add_gathered()
  local part = op.part
  if part.ends[1] then
    feed.add({ type = "ended", ends = part.ends })
    part.ends = {}
  end
  if part.arrived[1] then
    feed.add({ type = "arrived", run_ids = part.arrived })
    part.arrived = {}
  end
end

-- what ended and what came to the gate: one entry each in each version
function feed.add_gathered()
  op.each_part(add_gathered)
end

function feed.ring_at(bell, is_there, ...)
  call("XADD", bell, "MAXLEN", "~", BELL_MAX, "*", ...)
  if not is_there then
    call("PEXPIRE", bell, BELL_LEFT_MS)
  end
end

-- The feed without its entries from `id` on, of which none is ours.  It is made anew: a stream remembers the highest number
-- that it ever had.
function feed.clear_ahead(key, id)
  local ours = call("XRANGE", key, "-", "(" .. id)
  call("DEL", key)
  for _, item in ipairs(ours) do
    if #item[2] <= FIELDS_MAX then -- no entry of ours has more than two fields
      call("XADD", key, item[1], unpack(item[2]))
    end
  end
end

local function last_number(stream)
  local info = call("XINFO", "STREAM", stream)
  for n = 1, #info, 2 do
    if info[n] == "last-generated-id" then
      return string.match(info[n + 1], "^%d+")
    end
  end
  return "0"
end

-- Numbers that only rise.  If another client wrote an entry that is ahead of them (`XADD feed *`), ours go on behind it; one so
-- far ahead that nothing can count on from there goes.
local function write_entry(each)
  local key = op.here.feed
  local added = redis.pcall("XADD", key, each[1], "ends", each[2], "entry", each[3])
  if type(added) ~= "table" or not added.err then
    return
  end
  local id, last = each[1], last_number(key)
  if #last > DIGITS_MAX then
    feed.clear_ahead(key, id)
  else
    set_count("entries", tonumber(last) + 1)
    id = text(count_of("entries")) .. "-0"
  end
  call("XADD", key, id, "ends", each[2], "entry", each[3])
end

local function check_part()
  local part, here = op.part, op.here
  check(here.meta, "hash")
  if part.entries[1] then
    check(here.feed, "stream")
    check(here.bell_feed, "stream")
  end
  if part.rings_runs then
    check(here.bell_runs, "stream")
  end
end

local function write_part()
  for _, each in ipairs(op.part.entries) do
    write_entry(each)
  end
  op.part.entries = {}
end

local function ring_part()
  local part, here = op.part, op.here
  if part.rings_runs then
    call("XADD", here.bell_runs, "MAXLEN", "~", BELL_MAX, "*", "kind", "runs")
  end
  if part.rings_feed then
    call("XADD", here.bell_feed, "MAXLEN", "~", BELL_MAX, "*", "kind", "feed")
  end
end

-- an owner may listen in another version than its run is in by now
local function ring_asked()
  local heard = next(op.asked) and versions.heard() or {}
  for owner in pairs(op.asked) do
    for version, is_there in pairs(heard) do
      feed.ring_at(op.keys_in(version).bell_runs, is_there, "kind", "asked", "node", owner)
    end
  end
end

-- Whether a number of a stream is free shows as it is written, so this comes before all that stays.
writes.writers[1] = {
  check = function()
    op.each_part(check_part)
    for version in pairs(next(op.asked) and versions.heard() or {}) do
      check(op.keys_in(version).bell_runs, "stream")
    end
  end,
  write = function()
    op.each_part(write_part)
    op.undos = false
  end,
  ring = function()
    op.each_part(ring_part)
    ring_asked()
  end,
}

return feed
