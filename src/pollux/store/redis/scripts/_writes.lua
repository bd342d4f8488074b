-- How does a script write?  It looks first, and gathers what it will write; all of it is written at its end, what goes to
-- one key in one command.  If one of the keys is not of our making, nothing is written at all.
local ARGUMENTS_MAX = 4000 -- of one command
local COMMANDS = {
  zset = { function(...) call("ZADD", ...) end, function(...) call("ZREM", ...) end },
  hash = { function(...) call("HSET", ...) end, function(...) call("HDEL", ...) end },
}
local gathered, sound = {}, {}
local writers = {} -- what else is to be written at the end

local function check(key, kind)
  if sound[key] then
    return
  end
  local found = call("TYPE", key).ok
  if found ~= "none" and found ~= kind then
    error({ err = "WRONGTYPE the key " .. key .. " is a " .. found .. " and should be a " .. kind })
  end
  sound[key] = true
end

local function check_gathered()
  for key, batch in pairs(gathered) do
    check(key, batch.kind)
  end
end

local function in_parts(command, key, arguments)
  for first = 1, #arguments, ARGUMENTS_MAX do
    command(key, unpack(arguments, first, math.min(first + ARGUMENTS_MAX - 1, #arguments)))
  end
end

local function write(key, batch)
  local drops, puts, n = {}, {}, 0
  for member in pairs(batch.drops) do
    n = n + 1
    drops[n] = member
  end
  n = 0
  for member, value in pairs(batch.puts) do
    if batch.kind == "zset" then
      puts[n + 1], puts[n + 2] = value, member
    else
      puts[n + 1], puts[n + 2] = member, value
    end
    n = n + 2
  end
  in_parts(COMMANDS[batch.kind][2], key, drops)
  in_parts(COMMANDS[batch.kind][1], key, puts)
end

local function batch_of(kind, key)
  local batch = { kind = kind, puts = {}, drops = {} }
  gathered[key] = batch
  return batch
end

-- a member and its score in a sorted set, or a field and its value in a hash
local function put(kind, key, member, value)
  local batch = gathered[key] or batch_of(kind, key)
  batch.puts[member] = value
end

local function drop(kind, key, member)
  local batch = gathered[key] or batch_of(kind, key)
  batch.puts[member] = nil
  batch.drops[member] = true
end

-- whoever looks at a key that this call writes to looks at what will be there
local function fresh(key)
  local batch = gathered[key]
  if batch then
    check_gathered()
    write(key, batch)
    gathered[key] = nil
  end
  return key
end

local function field_of(key, field)
  local batch = gathered[key]
  if batch and batch.puts[field] ~= nil then
    return batch.puts[field]
  end
  return not (batch and batch.drops[field]) and call("HGET", key, field)
end

-- the numbers that stand in META, read once
local COUNTERS = { "seq", "entries", "ends", "seen", "owed1", "owed2", "owed3", "granted", "clock", "stops", "notes" }
local counters, new_counters = false, {}

local function count_of(field)
  if not counters then
    counters = {}
    local row = call("HMGET", META, unpack(COUNTERS))
    for n, name in ipairs(COUNTERS) do
      counters[name] = tonumber(row[n] or 0)
    end
    sound[META] = true
  end
  return counters[field]
end

local function set_count(field, value)
  if count_of(field) ~= value then
    counters[field] = value
    new_counters[field] = value
  end
end

local function next_seq()
  local seq = count_of("seq") + 1
  set_count("seq", seq)
  return seq
end

-- the bell, rung once at the end of a call, and the feed
local rings = { runs = false, feed = false, asked = {} }
local told = {}

local function tell(entry)
  local id, ends = count_of("entries") + 1, entry.ends and #entry.ends or 0
  set_count("entries", id)
  set_count("ends", count_of("ends") + ends)
  told[#told + 1] = { text(id) .. "-0", ends, cmsgpack.pack(entry) }
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

local function ring()
  if rings.runs then
    call("XADD", BELL_RUNS, "MAXLEN", "~", BELL_MAX, "*", "kind", "runs")
  end
  if rings.feed then
    call("XADD", BELL_FEED, "MAXLEN", "~", BELL_MAX, "*", "kind", "feed")
  end
  for owner in pairs(rings.asked) do
    call("XADD", BELL_RUNS, "MAXLEN", "~", BELL_MAX, "*", "kind", "asked", "node", owner)
  end
end

local function check_all()
  check(META, "hash")
  check(HOME, "hash")
  if #told > 0 then
    check(FEED, "stream")
    check(BELL_FEED, "stream")
  end
  if rings.runs or next(rings.asked) then
    check(BELL_RUNS, "stream")
  end
  check_gathered()
end

local function commit()
  for _, writer in ipairs(writers) do
    writer.prepare()
  end
  check_all()
  for _, writer in ipairs(writers) do
    writer.write()
  end
  for key, batch in pairs(gathered) do
    write(key, batch)
  end
  gathered = {}
  if next(new_counters) then
    local fields = {}
    for field, value in pairs(new_counters) do
      fields[#fields + 1] = field
      fields[#fields + 1] = text(value)
    end
    call("HSET", META, unpack(fields))
    new_counters = {}
  end
  for _, each in ipairs(told) do
    call("XADD", FEED, each[1], "ends", each[2], "entry", each[3])
  end
  ring()
end

-- A script that may write answers its value and how many writes there were: whoever is told less later knows that
-- writes were lost.  It also makes each call a write, so that the replicas' WAIT means all that came before it.
local function counted(value)
  if WRITES then
    return { value, call("HINCRBY", HOME, "count", 1) }
  end
  return value
end

local function answer(value)
  if WRITES then
    commit()
  end
  return counted(cmsgpack.pack(value))
end
