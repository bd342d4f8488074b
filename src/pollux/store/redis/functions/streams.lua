-- The streams that other programs see.  The queues order runs (visible time, then arrival); each visible run in a queue owns
-- one undelivered entry of its stream, each leased run one pending entry.  An entry is a place, not a run: the queue
-- decides at the claim which run gets it.  No damage to a stream loses a run.
local streams = { GROUP = "scheduler" }
local call, text = op.call, op.text
local check, count_of, set_count = writes.check, writes.count_of, writes.set_count
local GROUP = streams.GROUP
local JANITOR = "-" -- the consumer that takes entries away; it is there for one call only
local PAY_MAX = 1000 -- entries that one call writes for runs that became visible by themselves, or takes away
local LAST, KEPT, OWED = { "last1", "last2", "last3" }, { "kept1", "kept2", "kept3" }, { "owed1", "owed2", "owed3" }

-- The stream or its group was deleted: what is left of it means nothing, and what waits gets new entries.
local function heal(pr)
  local here = op.here
  local stream = here.streams[pr]
  set_count(OWED[pr], call("ZCOUNT", writes.flush(here.queues[pr]), "-inf", op.now))
  call("DEL", stream)
  call("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")
  set_count(LAST[pr], "")
  set_count(KEPT[pr], "")
  op.part.coming[pr] = 0
  op.healed[#op.healed + 1] = stream
end

local function read_entries(pr, count, node)
  local stream = op.here.streams[pr]
  check(stream, "stream")
  local read = redis.pcall("XREADGROUP", "GROUP", GROUP, node, "COUNT", count, "STREAMS", stream, ">")
  if read and read.err then
    if not string.find(read.err, "NOGROUP", 1, true) then
      error(read)
    end
    heal(pr)
    read = false
  end
  local ids = {}
  for n, entry in ipairs(read and read[1] and read[1][2] or {}) do
    ids[n] = entry[1]
  end
  if #ids > 0 then
    set_count(LAST[pr], ids[#ids])
  end
  return ids
end

-- the entry of a run that is leased no more
function streams.spend(pr, entry)
  if entry then
    local spent = op.part.spent[pr]
    spent[#spent + 1] = entry
  end
end

local function add_entries(pr, count)
  local stream, at = op.here.streams[pr], text(op.now)
  for _ = 1, count do
    call("XADD", stream, "*", "at", at)
  end
end

-- entries for `count` runs that are taken from a queue; those that are missing are written on the spot
function streams.take(pr, count, node)
  writes.check_all()
  check(op.here.streams[pr], "stream")
  check(op.here.queues[pr], "zset") -- of which a stream is healed
  add_entries(pr, op.part.coming[pr])
  op.part.coming[pr] = 0
  local heals = #op.healed
  local ids = read_entries(pr, count, node)
  local missing = count - #ids
  if missing > 0 then
    if heals == #op.healed then -- entries that were owed to them
      set_count(OWED[pr], math.max(0, count_of(OWED[pr]) - missing))
    end
    add_entries(pr, missing)
    for _, id in ipairs(read_entries(pr, missing, node)) do
      ids[#ids + 1] = id
    end
  end
  return ids
end

-- visible runs left the queue, so as many entries go: delivered first, then acknowledged and deleted like all others
local function take_away(pr, count)
  local owed = math.min(count, count_of(OWED[pr]))
  set_count(OWED[pr], count_of(OWED[pr]) - owed)
  if count > owed then
    for _, id in ipairs(read_entries(pr, count - owed, JANITOR)) do
      streams.spend(pr, id)
    end
  end
  return count > owed
end

-- no visible run is left in a queue: entries that no run took are not of our making
function streams.drop_surplus(pr, node)
  for _, id in ipairs(read_entries(pr, PAY_MAX, node)) do
    streams.spend(pr, id)
  end
end

-- Delete what lies before the first entry that is still pending; true if all of `count` entries did.
local function trim(stream, last, count)
  local pending = redis.pcall("XPENDING", stream, GROUP, "-", "+", "1")
  if pending.err or last == "" then
    return false
  end
  if not pending[1] then -- all that was delivered is done
    local ms, number = string.match(last, "^(%d+)-(%d+)$")
    call("XTRIM", stream, "MINID", ms .. "-" .. text(number + 1))
    return true
  end
  return call("XTRIM", stream, "MINID", pending[1][1]) >= count
end

-- Acknowledged and deleted together; but of those that lie behind a pending one the entry that was delivered last stays until a
-- later one is delivered, unless it is the only one: behind a deleted one the server could not tell how many are to come.
local function drop_spent(pr)
  local stream, ids, last, kept = op.here.streams[pr], op.part.spent[pr], count_of(LAST[pr]), count_of(KEPT[pr])
  local gone, count = {}, #ids
  op.part.spent[pr] = {}
  for first = 1, count, PAY_MAX do
    redis.pcall("XACK", stream, GROUP, unpack(ids, first, math.min(first + PAY_MAX - 1, count)))
  end
  if count > 0 and trim(stream, last, count + (kept ~= "" and 1 or 0)) then
    set_count(KEPT[pr], "")
    return
  end
  if kept ~= "" and kept ~= last then
    gone[1], kept = kept, ""
  end
  for _, id in ipairs(ids) do
    if id == last then
      kept = id
    else
      gone[#gone + 1] = id
    end
  end
  for first = 1, #gone, PAY_MAX do
    call("XDEL", stream, unpack(gone, first, math.min(first + PAY_MAX - 1, #gone)))
  end
  if kept ~= "" and call("XLEN", stream) == 1 then
    call("XDEL", stream, kept)
    kept = ""
  end
  set_count(KEPT[pr], kept)
end

local function has_spent(pr)
  return op.part.spent[pr][1] ~= nil or count_of(KEPT[pr]) ~= ""
end

local function check_part()
  local part = op.part
  for pr = 1, 3 do
    if part.coming[pr] > 0 or part.leaving[pr] > 0 or has_spent(pr) then
      check(op.here.streams[pr], "stream")
    end
  end
end

local function write_part()
  local part = op.part
  for pr = 1, 3 do
    local net = part.coming[pr] - part.leaving[pr]
    part.coming[pr], part.leaving[pr] = 0, 0
    add_entries(pr, net)
    local has_janitor = net < 0 and take_away(pr, -net)
    if has_spent(pr) then
      drop_spent(pr)
    end
    if has_janitor then
      redis.pcall("XGROUP", "DELCONSUMER", op.here.streams[pr], GROUP, JANITOR)
    end
  end
end

writes.writers[#writes.writers + 1] = {
  check = function()
    op.each_part(check_part)
  end,
  write = function()
    op.each_part(write_part)
  end,
}

-- runs that became visible by themselves get their entries now; `seen` is up to when that was done
local function promote()
  local now, seen = op.now, count_of("seen")
  if now < seen then -- the clock came back: what got an entry too many loses it in `claim`
    set_count("seen", now)
    return
  end
  local since = "(" .. text(seen)
  for pr = 1, 3 do
    local queue = op.here.queues[pr]
    local owed = count_of(OWED[pr]) + call("ZCOUNT", queue, since, now)
    op.sound[queue] = true
    local pays = math.min(owed, PAY_MAX)
    op.part.coming[pr] = op.part.coming[pr] + pays
    set_count(OWED[pr], owed - pays)
  end
  set_count("seen", now)
end

-- in this version, and in each that the operation comes to
function streams.promote()
  op.at_new_part = promote
  promote()
end

return streams
