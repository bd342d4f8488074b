-- Buffered writes: an operation reads first and gathers its writes; all are made at its end, those to one key in one command.
-- If one of the keys has a foreign type, nothing is written: what had to be written before the end is restored
-- (`writes.run`).
local writes = { writers = {} } -- what modules write at the end: each checks its keys, then writes
local call, text, DEFAULT = op.call, op.text, op.DEFAULT
local ARGUMENTS_MAX = 4000 -- of one command
local SEAL = "move:seal" -- the note of a store that must not be changed
function writes.check(key, kind)
  if op.sound[key] then
    return
  end
  local found = call("TYPE", key).ok
  if found ~= "none" and found ~= kind then
    error({ err = "WRONGTYPE the key " .. key .. " is a " .. found })
  end
  op.sound[key] = true
end

function writes.send(command, key, arguments)
  for first = 1, #arguments, ARGUMENTS_MAX do
    call(command, key, unpack(arguments, first, math.min(first + ARGUMENTS_MAX - 1, #arguments)))
  end
end

local send = writes.send

local function write(key, batch)
  if batch.kind == "zset" then
    send("ZREM", key, batch.drops)
    send("ZADD", key, batch.puts)
    return
  end
  local drops, puts = {}, {}
  for field in pairs(batch.drops) do
    drops[#drops + 1] = field
  end
  for field, value in pairs(batch.puts) do
    puts[#puts + 1] = field
    puts[#puts + 1] = value
  end
  send("HDEL", key, drops)
  send("HSET", key, puts)
end

local function new_batch(kind)
  return { kind = kind, puts = {}, drops = {}, drop_count = 0 }
end

local function batch_of(kind, key)
  local batch = new_batch(kind)
  op.gathered[key] = batch
  return batch
end

-- A batch of a sorted set is two lists as they go to the server, of scores and members to add and of members to remove first.
-- `places` has where a member to add is: made as soon as one is removed after it was added.  Until then a member may be in the
-- list several times, and the last score counts.
local function find_places(puts)
  local places, count, last = {}, #puts, 0
  for n = 2, count, 2 do
    local score, member = puts[n - 1], puts[n]
    local place = places[member]
    if not place then
      last = last + 2
      place = last
      places[member], puts[place] = place, member
    end
    puts[place - 1] = score
  end
  for n = count, last + 1, -1 do
    puts[n] = nil
  end
  return places
end

local function forget_add(batch, member)
  local puts, places = batch.puts, batch.places
  if not places then
    places = find_places(puts)
    batch.places = places
  end
  local place, last = places[member], #puts
  if place then
    puts[place - 1], puts[place] = puts[last - 1], puts[last]
    places[puts[place]] = place
    puts[last - 1], puts[last], places[member] = nil, nil, nil
  end
end

-- a member and its score
function writes.zadd(key, member, score)
  local batch = op.gathered[key] or batch_of("zset", key)
  local puts = batch.puts
  local last = #puts
  local places = batch.places
  if places and places[member] then
    puts[places[member] - 1] = score
    return
  end
  puts[last + 1], puts[last + 2] = score, member
  if places then
    places[member] = last + 2
  end
end

function writes.zrem(key, member)
  local batch = op.gathered[key] or batch_of("zset", key)
  if batch.puts[1] then
    forget_add(batch, member)
  end
  local count = batch.drop_count + 1
  batch.drops[count], batch.drop_count = member, count
end

-- a field of a hash and its value
function writes.hset(key, field, value)
  local batch = op.gathered[key] or batch_of("hash", key)
  batch.puts[field] = value
end

function writes.hdel(key, field)
  local batch = op.gathered[key] or batch_of("hash", key)
  batch.puts[field], batch.drops[field] = nil, true
end

-- the members of a batch as they are stored, as a batch that restores them
local function stored(key, batch)
  local before = new_batch(batch.kind)
  if batch.kind == "hash" then
    for _, fields in ipairs({ batch.drops, batch.puts }) do
      for field in pairs(fields) do
        local value = call("HGET", key, field)
        before[value and "puts" or "drops"][field] = value or true
      end
    end
    return before
  end
  local function restore(member)
    local score = call("ZSCORE", key, member)
    local list = score and before.puts or before.drops
    list[#list + 1] = score or member
    list[#list + 1] = score and member or nil
  end
  for _, member in ipairs(batch.drops) do
    restore(member)
  end
  for n = 2, #batch.puts, 2 do
    restore(batch.puts[n])
  end
  return before
end

-- who looks at a key that this operation writes to looks at what will be there
function writes.flush(key)
  local batch = op.gathered[key]
  if batch then
    writes.check_all()
    if op.undos then
      op.undos[#op.undos + 1] = { key, stored(key, batch) }
    end
    write(key, batch)
    op.gathered[key] = nil
  end
  return key
end

function writes.field_of(key, field)
  local batch = op.gathered[key]
  if batch and batch.puts[field] ~= nil then
    return batch.puts[field]
  end
  return not (batch and batch.drops[field]) and call("HGET", key, field)
end

-- the fields of `meta` of a version, read once: numbers, and of each stream the entry that was delivered last, and one that stays
local META_FIELDS = { "seq", "entries", "ends", "seen", "owed1", "owed2", "owed3", "granted", "clock", "stops", "notes", "jobs",
  "last1", "last2", "last3", "kept1", "kept2", "kept3" }
local NUMBERS = 12 -- the first ones
local SHARED = { seq = true, stops = true, notes = true } -- over all versions

local function counters_in(version)
  local counters = op.counters[version]
  if not counters then
    counters = {}
    local meta = op.keys_in(version).meta
    local row = call("HMGET", meta, unpack(META_FIELDS))
    op.sound[meta] = true
    for n = 1, NUMBERS do
      counters[META_FIELDS[n]] = tonumber(row[n] or 0)
    end
    for n = NUMBERS + 1, #META_FIELDS do
      counters[META_FIELDS[n]] = row[n] or ""
    end
    op.counters[version], op.new_counters[version] = counters, {}
  end
  return counters
end

function writes.count_in(version, field)
  return counters_in(version)[field]
end

function writes.set_count_in(version, field, value)
  local counters = counters_in(version)
  if counters[field] ~= value then
    counters[field] = value
    op.new_counters[version][field] = value
  end
end

function writes.count_of(field)
  return counters_in(SHARED[field] and DEFAULT or op.here.version)[field]
end

function writes.set_count(field, value)
  writes.set_count_in(SHARED[field] and DEFAULT or op.here.version, field, value)
end

function writes.next_seq()
  local counters = counters_in(DEFAULT)
  local seq = counters.seq + 1
  counters.seq, op.new_counters[DEFAULT].seq = seq, seq
  return seq
end

-- all keys that this operation will write to, as far as is known by now
function writes.check_all()
  local check = writes.check
  for _, writer in ipairs(writes.writers) do
    writer.check()
  end
  for _, writer in ipairs(op.writers) do
    writer.check()
  end
  check(op.keys.home, "hash")
  for key, batch in pairs(op.gathered) do
    check(key, batch.kind)
  end
end

local function write_counters()
  for version, changed in pairs(op.new_counters) do
    if next(changed) then
      local fields = {}
      for field, value in pairs(changed) do
        fields[#fields + 1] = field
        fields[#fields + 1] = type(value) == "number" and text(value) or value
      end
      call("HSET", op.keys_in(version).meta, unpack(fields))
      op.new_counters[version] = {}
    end
  end
end

local function commit()
  writes.check_all()
  for _, writer in ipairs(writes.writers) do
    writer.write()
  end
  for _, writer in ipairs(op.writers) do
    writer.write()
  end
  for key, batch in pairs(op.gathered) do
    write(key, batch)
  end
  write_counters()
  for _, writer in ipairs(writes.writers) do
    if writer.ring then
      writer.ring()
    end
  end
end

local function run(body)
  if op.args.unless_moved and call("HEXISTS", op.keys.notes, SEAL) == 1 then
    error({ err = "SEALED the store is being moved, or was" })
  end
  local value = body()
  if value ~= nil then
    commit()
  end
  return value
end

-- Run a function that writes.  It answers nothing if it did nothing; a function that it answers is called when all is written.
-- The answer is its value and how many writes there were: a caller that gets a lower count later knows that writes were
-- lost.  The count also makes each call a write, so that WAIT for the replicas means all that came before it.
function writes.run(body)
  local is_done, value = pcall(run, body)
  if not is_done then
    for n = op.undos and #op.undos or 0, 1, -1 do
      write(unpack(op.undos[n], 1, 2))
    end
    error(value, 0)
  end
  if value == nil then
    return nil
  end
  local answer = type(value) == "function" and value() or cmsgpack.pack(value)
  return { answer, call("HINCRBY", op.keys.home, "count", 1) }
end

return writes
