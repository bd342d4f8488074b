-- Versions of the deployment: the hash `versions` has each that ever was, and whether it is there.
local versions = {}
local call, text, DEFAULT = op.call, op.text, op.DEFAULT
local count_in = writes.count_in

-- all that ever were, and whether each is there; a new store does not name the default one
function versions.known()
  local known, row, in_others = {}, call("HGETALL", op.keys.versions), 0
  for n = 1, #row, 2 do
    local version = tonumber(row[n])
    known[version] = row[n + 1] == "1"
    in_others = in_others + (version ~= DEFAULT and count_in(version, "jobs") or 0)
  end
  if known[DEFAULT] == nil then
    local term = tonumber(call("HGET", op.keys_in(DEFAULT).meta, "term") or 0)
    known[DEFAULT] = term > 0 or call("ZCARD", op.keys.jobs) > in_others
  end
  return known
end

function versions.there(also)
  local there, known = {}, versions.known()
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
-- called back.  The bells of the default one stay: every opening makes them.
function versions.heard(also)
  local heard = versions.known()
  if also and heard[also] == nil then
    heard[also] = false
  end
  heard[DEFAULT] = true
  return heard
end

-- the version is there from now on
function versions.use(version)
  op.used[version] = call("HGET", op.keys.versions, version) or ""
end

-- of one that has a feed but is not used yet
function versions.note(version)
  if version ~= DEFAULT and op.used[version] == nil and not call("HGET", op.keys.versions, version) then
    writes.hset(op.keys.versions, text(version), "0")
  end
end

local function bells_of(version)
  local keys = op.keys_in(version)
  return { keys.bell_runs, keys.bell_feed }
end

writes.writers[2] = {
  check = function()
    for version, before in pairs(op.used) do
      writes.check(op.keys.versions, "hash")
      for _, names in ipairs(before ~= "1" and version ~= DEFAULT and { op.keys_in(version).streams, bells_of(version) } or {}) do
        for _, name in ipairs(names) do
          writes.check(name, "stream")
        end
      end
    end
  end,
  write = function()
    for version, before in pairs(op.used) do
      if before ~= "1" and version ~= DEFAULT then -- it is new, or was dropped with its streams
        for _, stream in ipairs(op.keys_in(version).streams) do
          redis.pcall("XGROUP", "CREATE", stream, "scheduler", "0", "MKSTREAM")
        end
        for _, bell in ipairs(bells_of(version)) do
          call("PERSIST", bell)
        end
      end
      if before ~= "1" then
        call("HSET", op.keys.versions, version, "1")
      end
    end
    op.used = {}
  end,
}

-- held, ready, leased, dead, feed, ends, jobs of a version, or of all of them; what is dead is so over all
function versions.counts(version)
  local sums, in_others = { 0, 0, 0, 0, 0, 0, 0 }, 0
  for each in pairs(versions.known()) do
    if each ~= DEFAULT then
      in_others = in_others + count_in(each, "jobs")
    end
    if not version or each == version then
      local keys, ready = op.keys_in(each), 0
      for pr = 1, 3 do
        ready = ready + call("ZCARD", keys.queues[pr])
      end
      local row = { call("ZCARD", keys.held), ready, call("ZCARD", keys.leases), 0, call("XLEN", keys.feed),
        count_in(each, "ends"), each ~= DEFAULT and count_in(each, "jobs") or 0 }
      for n = 1, 7 do
        sums[n] = sums[n] + row[n]
      end
    end
  end
  if not version or version == DEFAULT then
    sums[7] = sums[7] + call("ZCARD", op.keys.jobs) - in_others
  end
  sums[4] = call("ZCARD", op.keys.finished_dead)
  return sums
end

-- what a beat has left, unpacked; nothing if another client wrote it
function versions.node_of(packed)
  local is_whole, node = pcall(cmsgpack.unpack, packed)
  local is_ours = is_whole and type(node) == "table" and type(node[1]) == "number" and type(node[2]) == "number"
  return is_ours and node or nil
end

-- of the living nodes that serve the caller's version
function versions.seats()
  local sum = 0
  for _, packed in ipairs(call("HVALS", op.keys.nodes)) do
    local node = versions.node_of(packed)
    if node and node[1] > op.now and (node[6] or DEFAULT) == op.args.v then
      sum = sum + node[2]
    end
  end
  return sum
end

return versions
