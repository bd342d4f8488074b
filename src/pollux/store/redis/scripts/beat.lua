#!lua flags=allow-oom
-- Heartbeat of a node.  Every beat removes expired nodes, and consumers without a node.
local before = call("HGET", NODES, A.id)
before = before and node_of(before)
local was_known = before and before[1] > now and before[3] == A.handlers and (before[6] or DEFAULT) == A.version
local living = {}

local function bury()
  local all = call("HGETALL", NODES)
  for n = 1, #all, 2 do
    local node = node_of(all[n + 1])
    if all[n] == A.id or (node and node[1] > now) then
      living[all[n]] = true
    else
      drop("hash", NODES, all[n])
    end
  end
  living[A.id] = true
end

-- one that still holds entries stays until its leases are taken back
local function sweep_consumers()
  for version in pairs(versions_known()) do
    for _, stream in ipairs({ "jobs:high", "jobs:normal", "jobs:low" }) do
      local key = key_of(version, stream)
      local found = redis.pcall("XINFO", "CONSUMERS", key, GROUP)
      for _, row in ipairs(found.err and {} or found) do
        local name, pending = row[2], row[4]
        if pending == 0 and not living[name] then
          call("XGROUP", "DELCONSUMER", key, GROUP, name)
        end
      end
    end
  end
end

bury()
put("hash", NODES, A.id, cmsgpack.pack({ now + A.ttl_ms, A.seats, A.handlers, A.node, now, A.version }))
use(A.version)
if not was_known then
  enter(A.version)
  tell({ type = "node", node = A.id })
end
check_all()
sweep_consumers()
return answer(true)
