-- The streams that other programs see.  The queues order (visible time, then arrival); each visible run in a queue owns
-- one undelivered entry of its stream, each leased run one pending entry.  An entry is a place, not a run: the queue
-- decides at the claim which run gets it.  No damage to a stream loses a run.
local JANITOR = "-" -- the consumer that takes entries away; it is there for one call only

-- entries that come and go with this call
local healed = {} -- streams that had lost their group
local coming, leaving, spent = { 0, 0, 0 }, { 0, 0, 0 }, { {}, {}, {} }

-- somebody deleted the stream or its group: what is left of it means nothing, and what waits gets new entries
local function heal(pr)
  set_count("owed" .. pr, call("ZCOUNT", fresh(QUEUE[pr]), "-inf", now))
  call("DEL", STREAM[pr])
  call("XGROUP", "CREATE", STREAM[pr], GROUP, "0", "MKSTREAM")
  set_count("last" .. pr, "")
  set_count("kept" .. pr, "")
  coming[pr] = 0
  healed[#healed + 1] = STREAM[pr]
end

local function read_entries(pr, count, node)
  check(STREAM[pr], "stream")
  local read = redis.pcall("XREADGROUP", "GROUP", GROUP, node, "COUNT", count, "STREAMS", STREAM[pr], ">")
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
    set_count("last" .. pr, ids[#ids])
  end
  return ids
end

local function spend(pr, entry)
  if entry then
    table.insert(spent[pr], entry)
  end
end

local function add_entries(pr, count)
  for _ = 1, count do
    call("XADD", STREAM[pr], "*", "at", now)
  end
end

-- entries for `count` runs that are taken from a line; those that are missing are written on the spot
local function take_entries(pr, count, node)
  check_all()
  check(STREAM[pr], "stream")
  check(QUEUE[pr], "zset") -- of which a stream is healed
  add_entries(pr, coming[pr])
  coming[pr] = 0
  local heals = #healed
  local ids = read_entries(pr, count, node)
  local missing = count - #ids
  if missing > 0 then
    if heals == #healed then -- entries that were owed to them
      set_count("owed" .. pr, math.max(0, count_of("owed" .. pr) - missing))
    end
    add_entries(pr, missing)
    for _, id in ipairs(read_entries(pr, missing, node)) do
      ids[#ids + 1] = id
    end
  end
  return ids
end

-- visible runs left the line, so as many entries go: delivered first, then acknowledged and deleted like all others
local function take_away(pr, count)
  local owed = math.min(count, count_of("owed" .. pr))
  set_count("owed" .. pr, count_of("owed" .. pr) - owed)
  if count > owed then
    for _, id in ipairs(read_entries(pr, count - owed, JANITOR)) do
      spend(pr, id)
    end
  end
  return count > owed
end

-- no visible run is left in a line: entries that nobody took are not of our making
local function drop_surplus(pr, node)
  for _, id in ipairs(read_entries(pr, PAY_MAX, node)) do
    spend(pr, id)
  end
end

-- Acknowledged and deleted together; but the entry that was delivered last stays until a later one is delivered, unless it
-- is the only one: behind a deleted one the server could not tell how many there are to come.
local function drop_spent(pr)
  local ids, gone, last, kept = spent[pr], {}, count_of("last" .. pr), count_of("kept" .. pr)
  spent[pr] = {}
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
  for first = 1, #ids, PAY_MAX do
    redis.pcall("XACK", STREAM[pr], GROUP, unpack(ids, first, math.min(first + PAY_MAX - 1, #ids)))
  end
  for first = 1, #gone, PAY_MAX do
    call("XDEL", STREAM[pr], unpack(gone, first, math.min(first + PAY_MAX - 1, #gone)))
  end
  if kept ~= "" and call("XLEN", STREAM[pr]) == 1 then
    call("XDEL", STREAM[pr], kept)
    kept = ""
  end
  set_count("kept" .. pr, kept)
end

local function has_spent(pr)
  return #spent[pr] > 0 or count_of("kept" .. pr) ~= ""
end

-- goes with coming
writers[#writers + 1] = {
  check = function()
    each_part(function()
      for pr = 1, 3 do
        if coming[pr] > 0 or leaving[pr] > 0 or has_spent(pr) then
          check(STREAM[pr], "stream")
        end
      end
    end)
  end,
  write = function()
    each_part(function()
      for pr = 1, 3 do
        local net = coming[pr] - leaving[pr]
        coming[pr], leaving[pr] = 0, 0
        add_entries(pr, net)
        local has_janitor = net < 0 and take_away(pr, -net)
        if has_spent(pr) then
          drop_spent(pr)
        end
        if has_janitor then
          redis.pcall("XGROUP", "DELCONSUMER", STREAM[pr], GROUP, JANITOR)
        end
      end
    end)
  end,
}

-- runs that became visible by themselves get their entries now; `seen` is up to when that was done
local has_promoted = false

local function promote()
  has_promoted = true
  local seen = count_of("seen")
  if now < seen then -- the clock came back: what got an entry too many loses it in `claim`
    set_count("seen", now)
    return
  end
  for pr = 1, 3 do
    local owed = count_of("owed" .. pr) + call("ZCOUNT", QUEUE[pr], "(" .. text(seen), now)
    sound[QUEUE[pr]] = true
    local pays = math.min(owed, PAY_MAX)
    coming[pr] = coming[pr] + pays
    set_count("owed" .. pr, owed - pays)
  end
  set_count("seen", now)
end
