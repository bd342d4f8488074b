-- Buffered writes: a script reads first, and collects its writes; all are executed at its end, those to one key in one
-- command.  If one of the keys has a foreign type, nothing is written: what had to be written before the end is restored
-- (`to_its_end`).
local ARGUMENTS_MAX = 4000 -- of one command
local COMMANDS = {
  zset = { function(...) call("ZADD", ...) end, function(...) call("ZREM", ...) end },
  hash = { function(...) call("HSET", ...) end, function(...) call("HDEL", ...) end },
}
local gathered, sound = {}, {}
local undos = {} -- what `fresh` has written over, the last one last; none is kept from when all is written
local writers = {} -- what else is written at the end: each checks its keys, then writes

local function check(key, kind)
  if sound[key] then
    return
  end
  local found = call("TYPE", key).ok
  if found ~= "none" and found ~= kind then
    error({ err = "WRONGTYPE the key " .. key .. " is a " .. found })
  end
  sound[key] = true
end

local check_all -- all keys that this call will write to, as far as is known by now

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

-- how the members of a batch stand by now, as a batch that brings it back
local function standing(key, batch)
  local members, before = {}, { kind = batch.kind, puts = {}, drops = {} }
  for member in pairs(batch.drops) do
    members[#members + 1] = member
  end
  for member in pairs(batch.puts) do
    members[#members + 1] = member
  end
  in_parts(function(_, ...)
    local asked = { ... }
    for n, value in ipairs(call(batch.kind == "zset" and "ZMSCORE" or "HMGET", key, ...)) do
      if value then
        before.puts[asked[n]] = value
      else
        before.drops[asked[n]] = true
      end
    end
  end, key, members)
  return before
end

-- whoever looks at a key that this call writes to looks at what will be there
local function fresh(key)
  local batch = gathered[key]
  if batch then
    check_all()
    if undos then
      undos[#undos + 1] = { key, standing(key, batch) }
    end
    write(key, batch)
    gathered[key] = nil
  end
  return key
end

-- The loader calls each body that may write before its end by this.  Of one that comes upon something it cannot go on with,
-- nothing is left.
local function to_its_end(body)
  local is_done, found = pcall(body)
  if is_done then
    return found
  end
  for n = undos and #undos or 0, 1, -1 do
    write(unpack(undos[n], 1, 2))
  end
  return error(found, 0)
end

local function field_of(key, field)
  local batch = gathered[key]
  if batch and batch.puts[field] ~= nil then
    return batch.puts[field]
  end
  return not (batch and batch.drops[field]) and call("HGET", key, field)
end

-- what stands in META, read once: numbers, and of each stream the entry that was delivered last, and one that was kept
local COUNTERS = { "seq", "entries", "ends", "seen", "owed1", "owed2", "owed3", "granted", "clock", "stops", "notes",
  "jobs" }
local META_FIELDS = { unpack(COUNTERS) }
for _, name in ipairs({ "last1", "last2", "last3", "kept1", "kept2", "kept3" }) do
  META_FIELDS[#META_FIELDS + 1] = name
end
local SHARED = { seq = true, stops = true, notes = true } -- over all versions
local counters, new_counters = {}, {} -- by version

local function count_in(version, field)
  local known = counters[version]
  if not known then
    known = {}
    local meta = key_of(version, "meta")
    local row = call("HMGET", meta, unpack(META_FIELDS))
    sound[meta] = true
    for n, name in ipairs(META_FIELDS) do
      known[name] = n > #COUNTERS and (row[n] or "") or tonumber(row[n] or 0)
    end
    counters[version], new_counters[version] = known, {}
  end
  return known[field]
end

local function count_of(field)
  return count_in(SHARED[field] and DEFAULT or here, field)
end

local function set_count_in(version, field, value)
  if count_in(version, field) ~= value then
    counters[version][field] = value
    new_counters[version][field] = value
  end
end

local function set_count(field, value)
  set_count_in(SHARED[field] and DEFAULT or here, field, value)
end

local function next_seq()
  local seq = count_of("seq") + 1
  set_count("seq", seq)
  return seq
end

-- the bell, rung once at the end of a call, and the feed
local rings, told, asked = { runs = false, feed = false }, {}, {}
local parts = {} -- the versions that this call has been in, with what it switched

local function each_part(work)
  local before, versions = here, {}
  enter(here)
  for version in pairs(parts) do
    versions[#versions + 1] = version
  end
  table.sort(versions)
  for _, version in ipairs(versions) do
    enter(version)
    work()
  end
  enter(before)
end

-- all versions that ever were, and whether each is there; an old store does not say of the first one
local function versions_known()
  local known, row, in_others = {}, call("HGETALL", VERSIONS), 0
  for n = 1, #row, 2 do
    local version = tonumber(row[n])
    known[version] = row[n + 1] == "1"
    in_others = in_others + (version ~= DEFAULT and count_in(version, "jobs") or 0)
  end
  if known[DEFAULT] == nil then
    local term = tonumber(call("HGET", key_of(DEFAULT, "meta"), "term") or 0)
    known[DEFAULT] = term > 0 or call("ZCARD", JOBS) > in_others
  end
  return known
end

local function versions_there(also)
  local there, known = {}, versions_known()
  if also then
    known[also] = true
  end
  for version, is_there in pairs(known) do
    if is_there then
      there[#there + 1] = version
    end
  end
  table.sort(there)
  return there
end

-- The versions in which a call may wait, and whether each is there: in one that was dropped its workers wait until they are
-- called back.  The bells of the first one stay: every opening makes them.
local function versions_heard(also)
  local heard = versions_known()
  if also and heard[also] == nil then
    heard[also] = false
  end
  heard[DEFAULT] = true
  return heard
end

-- a bell that is rung where no version is goes by itself, when everybody has heard it
local BELL_LEFT_MS = 60000

local function ring_at(bell, is_there, ...)
  call("XADD", bell, "MAXLEN", "~", BELL_MAX, "*", ...)
  if not is_there then
    call("PEXPIRE", bell, BELL_LEFT_MS)
  end
end

-- versions that are there from now on, and what each has
local used, STREAMS, BELLS = {}, { "jobs:high", "jobs:normal", "jobs:low" }, { "bell:runs", "bell:feed" }

local function use(version)
  used[version] = call("HGET", VERSIONS, version) or ""
end

-- goes with use
writers[#writers + 1] = {
  check = function()
    for version, before in pairs(used) do
      check(VERSIONS, "hash")
      for _, names in ipairs(before ~= "1" and version ~= DEFAULT and { STREAMS, BELLS } or {}) do
        for _, name in ipairs(names) do
          check(key_of(version, name), "stream")
        end
      end
    end
  end,
  write = function()
    for version, before in pairs(used) do
      if before ~= "1" and version ~= DEFAULT then -- it is new, or was dropped with its streams
        for _, name in ipairs(STREAMS) do
          redis.pcall("XGROUP", "CREATE", key_of(version, name), GROUP, "0", "MKSTREAM")
        end
        for _, name in ipairs(BELLS) do
          call("PERSIST", key_of(version, name))
        end
      end
      if before ~= "1" then
        call("HSET", VERSIONS, version, "1")
      end
    end
    used = {}
  end,
}

local function tell(entry)
  local id, ends = count_of("entries") + 1, entry.ends and #entry.ends or 0
  set_count("entries", id)
  set_count("ends", count_of("ends") + ends)
  told[#told + 1] = { text(id) .. "-0", ends, cmsgpack.pack(entry) }
  rings.feed = true
end

-- what ended and what came to the gate, each where it is: one entry a version
local ends, arrived = {}, {}

local function tell_gathered()
  each_part(function()
    if #ends > 0 then
      tell({ type = "ended", ends = ends })
      parts[here].ends, ends = {}, {}
    end
    if #arrived > 0 then
      tell({ type = "arrived", run_ids = arrived })
      parts[here].arrived, arrived = {}, {}
    end
  end)
end

-- whoever leads, in every version that is there, and in our own: its leader may be about to come
local function tell_everywhere(entry)
  local before = here
  if OWN ~= DEFAULT and used[OWN] == nil and not call("HGET", VERSIONS, OWN) then
    put("hash", VERSIONS, text(OWN), "0") -- it is not there, but it has a feed now, which is counted
  end
  for _, version in ipairs(versions_there(OWN)) do
    enter(version)
    tell(entry)
  end
  enter(before)
end

local function ring()
  if rings.runs then
    call("XADD", BELL_RUNS, "MAXLEN", "~", BELL_MAX, "*", "kind", "runs")
  end
  if rings.feed then
    call("XADD", BELL_FEED, "MAXLEN", "~", BELL_MAX, "*", "kind", "feed")
  end
end

-- an owner may listen in another version than its run is in by now
local function ring_asked()
  local heard = next(asked) and versions_heard() or {}
  for owner in pairs(asked) do
    for version, is_there in pairs(heard) do
      ring_at(key_of(version, "bell:runs"), is_there, "kind", "asked", "node", owner)
    end
  end
end

-- A feed without what stands from `id` on, where none of ours is.  It is made anew: a stream remembers the highest number that
-- it ever had.
local function clear_ahead(feed, id)
  local ours = call("XRANGE", feed, "-", "(" .. id)
  call("DEL", feed)
  for _, item in ipairs(ours) do
    if #item[2] <= ARGUMENTS_MAX then -- no entry of ours has more than two fields
      call("XADD", feed, item[1], unpack(item[2]))
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

local DIGITS_MAX = 15 -- of a number from which we count on: scripts count exactly up to 2^53

-- Numbers that only rise.  If somebody else wrote an entry that is ahead of them (`XADD feed *`), ours go on behind it; one so
-- far ahead that nobody can count on from there goes.
local function tell_now(each)
  local added = redis.pcall("XADD", FEED, each[1], "ends", each[2], "entry", each[3])
  if type(added) ~= "table" or not added.err then
    return
  end
  local id, last = each[1], last_number(FEED)
  if #last > DIGITS_MAX then
    clear_ahead(FEED, id)
  else
    set_count("entries", tonumber(last) + 1)
    id = text(count_of("entries")) .. "-0"
  end
  call("XADD", FEED, id, "ends", each[2], "entry", each[3])
end

check_all = function()
  for _, writer in ipairs(writers) do
    writer.check()
  end
  check(HOME, "hash")
  each_part(function()
    check(META, "hash")
    if #told > 0 then
      check(FEED, "stream")
      check(BELL_FEED, "stream")
    end
    if rings.runs then
      check(BELL_RUNS, "stream")
    end
  end)
  for version in pairs(next(asked) and versions_heard() or {}) do
    check(key_of(version, "bell:runs"), "stream")
  end
  for key, batch in pairs(gathered) do
    check(key, batch.kind)
  end
end

local function commit()
  check_all()
  for _, writer in ipairs(writers) do
    writer.write()
  end
  for key, batch in pairs(gathered) do
    write(key, batch)
  end
  gathered = {}
  for version, changed in pairs(new_counters) do
    if next(changed) then
      local fields = {}
      for field, value in pairs(changed) do
        fields[#fields + 1] = field
        fields[#fields + 1] = type(value) == "number" and text(value) or value
      end
      call("HSET", key_of(version, "meta"), unpack(fields))
      new_counters[version] = {}
    end
  end
  each_part(ring)
  ring_asked()
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

-- lines of the audit log that tell of what is written, and the number of the last one before them
local lines, lines_after = {}, 0

-- goes with lines_after
writers[#writers + 1] = {
  check = function()
    if #lines > 0 then
      check(LOG, "stream")
    end
  end,
  write = function()
    for n, line in ipairs(lines) do
      call("XADD", LOG, text(lines_after + n) .. "-0", "line", line)
    end
    lines = {}
  end,
}

-- goes with told: of streams whether a number is free shows as it is written, so they come before all that stays
writers[#writers + 1] = {
  check = function() end, -- see `check_all`
  write = function()
    each_part(function()
      for _, each in ipairs(told) do
        tell_now(each)
      end
    end)
    undos = nil
  end,
}

-- The lines were chained by the caller, who believed that these words would be `said` and that the log ends with `last`.
-- If it is not so nothing may be written, and the caller is told how it is.
local function disbelieved(value, said)
  local last = call("XREVRANGE", LOG, "+", "-", "COUNT", 1)[1]
  local words, end_of_log = table.concat(said, "\n"), last and last[2][2] or ""
  if words ~= A.told.said or (#A.told.lines > 0 and end_of_log ~= A.told.last) then
    return counted(cmsgpack.pack({ false, value, words, end_of_log }))
  end
  lines, lines_after = A.told.lines, last and tonumber(string.match(last[1], "^%d+")) or 0
  return nil
end

-- with the lines, if there are any to go along; see `Handle._recorded`
local function answer_told(value, said)
  if not A.told then
    return answer(value)
  end
  return disbelieved(value, said) or answer({ true, value })
end

-- each row in words
local function in_words(rows)
  local said = {}
  for n, row in ipairs(rows) do
    said[n] = table.concat(row, " ")
  end
  return said
end
