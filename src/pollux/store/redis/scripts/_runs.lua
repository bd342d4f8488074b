-- Where does a run stand?  Its hash is the truth; live, it is held, in the line of its priority, or leased; finished,
-- it stands on a shelf.  All verbs move runs by `admit`, `put_back`, `finish` and `forget` alone.
--
-- The lines order (visible time, then arrival).  The streams are what is handed out and seen from outside: each
-- visible run in a line owns one undelivered entry, each leased run one pending entry.  An entry is a place, not a run:
-- which run gets it is decided by the line when it is claimed.  Whatever happens to a stream, no run is lost by it.
local RUN_COLUMNS = { "job", "due", "cause", "key", "payload", "pr", "grp", "tgt", "gated", "st", "why", "vis", "att",
  "loss", "crash", "fence", "tok", "own", "until", "cancel", "beg", "fin", "failed", "chg", "err", "res", "deaths",
  "prog", "tried" }
local TRIED_MAX = 5

local function run_key(id)
  return PREFIX .. "run:" .. id
end

local function live_key(job)
  return PREFIX .. "live:" .. job
end

local function shelf_key(job, is_dead)
  return PREFIX .. (is_dead and "dead:" or "past:") .. job
end

local function run_row(id)
  local row = call("HMGET", run_key(id), unpack(RUN_COLUMNS))
  if not row[1] then
    return false
  end
  row[#RUN_COLUMNS + 1] = id
  return row
end

-- what the verbs need to know of a run
local function read_run(id)
  local row = call("HMGET", run_key(id), "st", "job", "due", "cause", "key", "pr", "gated", "fence", "tok", "own",
    "until", "cancel", "ent", "q", "vis", "loss", "crash", "att", "deaths")
  if not row[1] then
    return nil
  end
  return {
    id = id, st = row[1], job = row[2], due = tonumber(row[3]), cause = row[4] or "schedule", key = row[5],
    pr = tonumber(row[6] or 2), gated = row[7] == "1", fence = tonumber(row[8] or 0), tok = row[9] or "",
    own = row[10] or "", until_ms = tonumber(row[11] or 0), cancel = row[12] or "", ent = row[13], q = row[14],
    vis = tonumber(row[15] or 0), loss = tonumber(row[16] or 0), crash = tonumber(row[17] or 0),
    att = tonumber(row[18] or 0), deaths = tonumber(row[19] or 1),
  }
end

local function is_live(run)
  return run.st == "held" or run.st == "ready" or run.st == "leased"
end

-- the streams

local function read_entries(pr, count, node)
  local read = redis.pcall("XREADGROUP", "GROUP", GROUP, node, "COUNT", count, "STREAMS", STREAM[pr], ">")
  if type(read) == "table" and read.err then
    if not string.find(read.err, "NOGROUP", 1, true) then
      error(read.err)
    end
    call("XGROUP", "CREATE", STREAM[pr], GROUP, "0", "MKSTREAM")
    read = call("XREADGROUP", "GROUP", GROUP, node, "COUNT", count, "STREAMS", STREAM[pr], ">")
  end
  local ids = {}
  if read and read[1] then
    for n, entry in ipairs(read[1][2]) do
      ids[n] = entry[1]
    end
  end
  return ids
end

local spent_entries = { {}, {}, {} }

local function spend(pr, entry)
  if entry then
    table.insert(spent_entries[pr], entry)
  end
end

-- once at the end of a call: acknowledged and deleted together
local function drop_spent()
  for pr = 1, 3 do
    local ids = spent_entries[pr]
    for first = 1, #ids, 1000 do
      local last = math.min(first + 999, #ids)
      redis.pcall("XACK", STREAM[pr], GROUP, unpack(ids, first, last))
      call("XDEL", STREAM[pr], unpack(ids, first, last))
    end
    spent_entries[pr] = {}
  end
end

local function add_entry(pr)
  call("XADD", STREAM[pr], "*", "at", now)
end

-- runs that became visible by themselves get their entries now; `seen` is up to when that was done
local function promote()
  local stands = call("HMGET", META, "seen", "owed1", "owed2", "owed3")
  local seen = tonumber(stands[1])
  if seen and now < seen then -- the clock came back: what got an entry too many loses it in `claim`
    call("HSET", META, "seen", now)
    return
  end
  for pr = 1, 3 do
    local before = tonumber(stands[pr + 1] or 0)
    local owed = before + call("ZCOUNT", LINE[pr], seen and "(" .. text(seen) or "-inf", now)
    local pays = math.min(owed, PAY_MAX)
    for _ = 1, pays do
      add_entry(pr)
    end
    if owed - pays ~= before then
      call("HSET", META, "owed" .. pr, owed - pays)
    end
  end
  if seen ~= now then
    call("HSET", META, "seen", now)
  end
end

-- entries for `count` runs that are taken from a line; those that are missing are written on the spot
local function take_entries(pr, count, node)
  local ids = read_entries(pr, count, node)
  local missing = count - #ids
  if missing > 0 then
    for _ = 1, missing do
      add_entry(pr)
    end
    for _, id in ipairs(read_entries(pr, missing, node)) do
      ids[#ids + 1] = id
    end
    local owed = get_number("owed" .. pr)
    if owed > 0 then
      call("HSET", META, "owed" .. pr, math.max(0, owed - missing))
    end
  end
  return ids
end

-- no visible run is left in a line: entries that nobody took belonged to runs that left it
local function drop_surplus(pr, node)
  if call("XLEN", STREAM[pr]) > 0 then
    for _, id in ipairs(read_entries(pr, PAY_MAX, node)) do
      spend(pr, id)
    end
  end
end

-- the moves

local function stand_ready(id, pr, visible)
  local q = pad_seq(next_seq())
  call("ZADD", LINE[pr], visible, q .. id)
  call("HSET", run_key(id), "st", "ready", "vis", visible, "q", q)
  if visible <= now then
    add_entry(pr)
  end
  rings.runs = true
end

local function stand_held(id)
  call("HINCRBY", META, "held", 1)
  call("HSET", run_key(id), "st", "held")
end

local function step_out(run)
  if run.st == "leased" then
    call("ZREM", LEASES, run.id)
    spend(run.pr, run.ent)
  elseif run.st == "held" then
    call("HINCRBY", META, "held", -1)
  else
    call("ZREM", LINE[run.pr], run.q .. run.id)
  end
end

-- `row` is {id, job, due, key or false, priority, state, visible, fields}
local function admit(row)
  local id, job, due, key, pr, state, visible, fields = unpack(row, 1, 8)
  call("HSET", run_key(id), "n", next_seq(), unpack(fields))
  if key then
    call("HSET", UNIQUE, key, id)
  end
  local place = pad(due) .. id
  call("ZADD", LIVE, 0, place)
  call("ZADD", live_key(job), 0, place)
  if state == "ready" then
    stand_ready(id, pr, visible)
  else
    stand_held(id)
  end
end

local function put_back(run, state, visible)
  step_out(run)
  call("HDEL", run_key(run.id), "own", "until", "len", "ent", "why", "q")
  if state == "ready" then
    stand_ready(run.id, run.pr, visible)
  else
    stand_held(run.id)
  end
  run.st = state
end

-- finished runs stand by (when they finished, in which order)
local function shelve(id, job, state, finished, is_unchanged)
  local pq = pad_seq(next_seq())
  local place = pad(finished) .. pq .. id
  local shelf = state == "dead" and SHELF_DEAD or (is_unchanged and SHELF_UNCHANGED or SHELF_PLAIN)
  call("ZADD", shelf, 0, place)
  call("ZADD", shelf_key(job, state == "dead"), 0, place)
  if state ~= "dead" then
    call("ZINCRBY", TALLY, 1, job)
  end
  return pq
end

local ATTEMPT = { "own", "until", "len", "ent", "why", "q", "n", "beg", "failed", "chg", "err", "res" }
local WAITED = { "own", "until", "len", "ent", "why", "q", "n" }

-- a live run ends; `fields` is what it leaves behind, and `stale` what goes
local function finish(run, state, finished, is_unchanged, stale, fields)
  step_out(run)
  if run.key and call("HGET", UNIQUE, run.key) == run.id then
    call("HDEL", UNIQUE, run.key)
  end
  local place = pad(run.due) .. run.id
  call("ZREM", LIVE, place)
  call("ZREM", live_key(run.job), place)
  local pq = shelve(run.id, run.job, state, finished, is_unchanged)
  call("HDEL", run_key(run.id), unpack(stale))
  call("HSET", run_key(run.id), "st", state, "fin", finished, "pq", pq, unpack(fields))
  run.st = state
end

-- take a finished run off its shelf; its hash stays
local function unshelve(id)
  local row = call("HMGET", run_key(id), "job", "st", "fin", "pq", "failed", "chg")
  local job, state = row[1], row[2]
  local place = pad(tonumber(row[3])) .. row[4] .. id
  local is_dead = state == "dead"
  if is_dead then
    call("ZREM", SHELF_DEAD, place)
  else
    local is_unchanged = state == "done" and row[5] ~= "1" and row[6] == "0"
    call("ZREM", is_unchanged and SHELF_UNCHANGED or SHELF_PLAIN, place)
    if call("ZINCRBY", TALLY, -1, job) == "0" then
      call("ZREM", TALLY, job)
    end
  end
  call("ZREM", shelf_key(job, is_dead), place)
end

local function forget(id)
  unshelve(id)
  call("DEL", run_key(id))
end

local function place_id(place)
  return string.sub(place, 30)
end

-- the end of an attempt in which no handler code ran to its end
local function idle_end(run, state, failed, why)
  return { run.id, run.job, state, run.cause, run.due, now, 0, failed, cjson.null, "", why, run.gated, false }
end

local function cancel_waiting(run, reason)
  local why = reason ~= "" and reason or "cancelled"
  finish(run, "cancelled", now, false, WAITED, { "cancel", why })
  return idle_end(run, "cancelled", false, why)
end

-- leave a request beside the lease; false if there is one already
local function ask_to_stop(run, reason)
  if run.cancel ~= "" then
    return false
  end
  run.cancel = reason ~= "" and reason or "cancelled"
  call("HSET", run_key(run.id), "cancel", run.cancel)
  rings.asked = rings.asked or {}
  rings.asked[run.own] = true
  return true
end

-- make a run live, if nothing stands against it; one that is held is noted in `arrived`
local function accept(row, arrived)
  local id, job, key, state = row[1], row[2], row[4], row[6]
  if call("EXISTS", run_key(id)) == 1 then
    return "already", ""
  end
  if not has_job(job) then
    return "stale", ""
  end
  if key then
    local holder = call("HGET", UNIQUE, key)
    if holder then
      return "conflict", holder
    end
  end
  admit(row)
  if state == "held" then
    arrived[#arrived + 1] = id
  end
  return "ok", ""
end

-- attempts in vain are kept as lines of JSON, the latest few
local function add_tried(id, line)
  local tried = call("HGET", run_key(id), "tried")
  local lines = {}
  for each in string.gmatch(tried or "", "[^\n]+") do
    lines[#lines + 1] = each
  end
  lines[#lines + 1] = line
  call("HSET", run_key(id), "tried", table.concat(lines, "\n", math.max(1, #lines - TRIED_MAX + 1)))
end

local function note_grant(is_first)
  local stands = call("HMGET", META, "granted", "clock")
  local granted, latest = tonumber(stands[1] or 0), tonumber(stands[2] or 0)
  call("HSET", META, "granted", is_first and now or math.max(granted, now), "clock", math.max(latest, now))
end

local function finished_call(value)
  drop_spent()
  ring()
  return answer(value)
end
