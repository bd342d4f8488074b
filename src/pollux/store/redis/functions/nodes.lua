-- Nodes, terms, versions, and the wake-up of all that wait.
local call, text, DEFAULT = op.call, op.text, op.DEFAULT
local check, hset, hdel = writes.check, writes.hset, writes.hdel
local TERMS_LOST_MAX = 1000

-- nodes that are over go; answers those that live
local function drop_dead()
  local all, living = call("HGETALL", op.keys.nodes), { [op.args.id] = true }
  for n = 1, #all, 2 do
    local node = versions.node_of(all[n + 1])
    if all[n] == op.args.id or (node and node[1] > op.now) then
      living[all[n]] = true
    else
      hdel(op.keys.nodes, all[n])
    end
  end
  return living
end

-- one that still holds entries stays until its leases are taken back
local function drop_consumers(living)
  for version in pairs(versions.known()) do
    for _, stream in ipairs(op.keys_in(version).streams) do
      local found = redis.pcall("XINFO", "CONSUMERS", stream, streams.GROUP)
      for _, row in ipairs(found.err and {} or found) do
        local name, pending = row[2], row[4]
        if pending == 0 and not living[name] then
          call("XGROUP", "DELCONSUMER", stream, streams.GROUP, name)
        end
      end
    end
  end
end

-- Heartbeat of a node.  Every beat removes expired nodes, and consumers without a node.  Without a time to live it leaves.
register.write("beat", "allow-oom", function()
  local args, now = op.args, op.now
  if args.ttl_ms == 0 then
    hdel(op.keys.nodes, args.id)
    return true
  end
  local before = call("HGET", op.keys.nodes, args.id)
  before = before and versions.node_of(before)
  local was_known = before and before[1] > now and before[3] == args.handlers and (before[6] or DEFAULT) == args.version
  local living = drop_dead()
  hset(op.keys.nodes, args.id, cmsgpack.pack({ now + args.ttl_ms, args.seats, args.handlers, args.node, now,
    args.version }))
  versions.use(args.version)
  if not was_known then
    op.enter(args.version)
    feed.add({ type = "node", node = args.id })
  end
  writes.check_all()
  drop_consumers(living)
  return true
end)

-- {node, when it beat}
register.read("nodes", function()
  local rows = {}
  for _, packed in ipairs(call("HVALS", op.keys.nodes)) do
    local node = versions.node_of(packed)
    if node and node[1] > op.now then
      rows[#rows + 1] = { node[4], node[5] }
    end
  end
  return rows
end)

-- Take or renew the leadership.  The end is a field that is compared, never a key that expires: terms only rise.  On another
-- server than the one that gave the last term away, terms may have been lost in which a node still believes: none of them is
-- given away again.
register.write("elect", "allow-oom", function()
  local args, now, meta = op.args, op.now, op.here.meta
  local row = call("HMGET", meta, "term", "holder", "term_until", "term_ttl", "term_home")
  local term, holder = tonumber(row[1] or 0), row[2] or ""
  local home = call("HGET", op.keys.home, "home") or ""
  if row[5] and row[5] ~= home then
    term, holder = math.max(term, args.seen) + TERMS_LOST_MAX, ""
  elseif args.seen > term then
    term, holder = args.seen, ""
  end
  local ends, ttl = tonumber(row[3] or 0), tonumber(row[4] or 0)
  ends = math.min(ends, now + ttl) -- the clock came back: no term lasts longer than it was given for
  local is_vacant = holder == "" or ends <= now
  if is_vacant or holder == args.node then
    term, holder, ends, ttl = term + (is_vacant and 1 or 0), args.node, now + args.ttl_ms, args.ttl_ms
  end
  versions.use(args.v)
  writes.check_all()
  call("HSET", meta, "term", term, "holder", holder, "term_until", ends, "term_ttl", ttl, "term_home", home)
  return { term, holder, ends, now }
end)

register.write("resign", "allow-oom", function()
  local meta = op.here.meta
  local row = call("HMGET", meta, "term", "holder")
  if tonumber(row[1] or 0) == op.args.term and row[2] == op.args.node then
    writes.check_all()
    call("HSET", meta, "holder", "", "term_until", 0, "term_ttl", 0)
  end
  return true
end)

-- {number, version} of every version that had a term, those after one, by version
register.read("get_term", function()
  local terms = {}
  for version in pairs(versions.known()) do
    local number = tonumber(call("HGET", op.keys_in(version).meta, "term") or 0)
    if number > 0 and version > op.args.after then
      terms[#terms + 1] = { number, version }
    end
  end
  table.sort(terms, function(one, other) return one[2] < other[2] end)
  return terms
end)

-- {number, counts, term, leader} of every version in use, by number
register.read("versions", function()
  local rows = {}
  for n, version in ipairs(versions.there()) do
    local row = call("HMGET", op.keys_in(version).meta, "term", "holder", "term_until")
    local leads = tonumber(row[3] or 0) > op.now and row[2] or ""
    rows[n] = { version, versions.counts(version), tonumber(row[1] or 0), leads }
  end
  return rows
end)

register.write("wake", "allow-oom", function()
  local bells = {}
  for version, is_there in pairs(versions.heard(op.args.v)) do
    local keys = op.keys_in(version)
    for _, bell in ipairs({ keys.bell_runs, keys.bell_feed }) do
      check(bell, "stream")
      bells[bell] = is_there
    end
  end
  check(op.keys.home, "hash")
  for bell, is_there in pairs(bells) do
    feed.ring_at(bell, is_there, "kind", "wake")
  end
  return true
end)

-- Forget a version that nothing uses: its feed, its bells, and its streams, which mean nothing without runs.  The number of
-- its term stays: terms only rise.  The default one keeps bells and streams: every opening makes them.  Answers 1, or 0 if it
-- is not there or in use.
local function is_unused(number)
  if not versions.known()[number] then
    return false
  end
  local counts = versions.counts(number)
  local row = call("HMGET", op.keys_in(number).meta, "holder", "term_until")
  local is_led = (row[1] or "") ~= "" and tonumber(row[2] or 0) > op.now
  return not (is_led or counts[1] > 0 or counts[2] > 0 or counts[3] > 0 or counts[7] > 0)
end

register.write("drop_version", "allow-oom", function()
  local number = op.args.version
  if not is_unused(number) then
    audit.add(0)
    return 0
  end
  local keys = op.keys_in(number)
  local goes = { keys.feed }
  writes.set_count_in(number, "ends", 0)
  if number ~= DEFAULT then
    goes = { keys.feed, keys.bell_runs, keys.bell_feed, unpack(keys.streams) }
    for pr = 1, 3 do -- what is noted of the streams goes with them
      writes.set_count_in(number, "owed" .. pr, 0)
      writes.set_count_in(number, "last" .. pr, "")
      writes.set_count_in(number, "kept" .. pr, "")
    end
  end
  op.writers[1] = {
    check = function()
      for _, key in ipairs(goes) do
        check(key, "stream")
      end
    end,
    write = function()
      call("DEL", unpack(goes))
      call("HSET", keys.meta, "holder", "", "term_until", 0, "term_ttl", 0)
      call("HSET", op.keys.versions, text(number), "0")
    end,
  }
  audit.add(1)
  return 1
end)
