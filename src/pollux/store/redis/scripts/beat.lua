#!lua flags=allow-oom
-- Say that a node lives.  Whoever comes first takes the dead away, and consumers that nobody is any more.
local before = call("HGET", NODES, A.id)
before = before and cmsgpack.unpack(before)
local is_known = before and before[1] > now and before[3] == A.handlers

local function sweep_consumers()
  for pr = 1, 3 do
    local found = redis.pcall("XINFO", "CONSUMERS", STREAM[pr], GROUP)
    for _, row in ipairs(found.err and {} or found) do
      local name, pending = row[2], row[4]
      if pending == 0 and call("HEXISTS", NODES, name) == 0 then
        call("XGROUP", "DELCONSUMER", STREAM[pr], GROUP, name)
      end
    end
  end
end

call("HSET", NODES, A.id, cmsgpack.pack({ now + A.ttl_ms, A.seats, A.handlers, A.node, now }))
if not is_known then
  local all = call("HGETALL", NODES)
  for n = 1, #all, 2 do
    if cmsgpack.unpack(all[n + 1])[1] <= now and all[n] ~= A.id then
      call("HDEL", NODES, all[n])
    end
  end
  sweep_consumers()
  tell({ type = "node", node = A.id })
end
return finished_call(true)
