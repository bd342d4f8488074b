#!lua flags=allow-oom
-- Create the streams and the group, and return the format; a store of another format is not changed.
local HOMES_MAX = 20

-- the last servers that took our writes, each with the count at which it began
local function note_home()
  local homes = call("HGET", HOME, "homes") or ""
  if call("HGET", HOME, "run") == A.home then
    return homes
  end
  local kept = {}
  for each in string.gmatch(homes, "%S+") do
    kept[#kept + 1] = each
  end
  kept[#kept + 1] = A.home .. ":" .. (call("HGET", HOME, "count") or "0")
  homes = table.concat(kept, " ", math.max(1, #kept - HOMES_MAX + 1))
  call("HSET", HOME, "run", A.home, "home", kept[#kept], "homes", homes)
  return homes
end

for pr = 1, 3 do
  check(STREAM[pr], "stream")
end
check(HOME, "hash")
local format = call("HGET", META, "format")
if not format then
  call("HSET", META, "format", A.format)
  format = text(A.format)
end
if tonumber(format) ~= A.format then
  return { cmsgpack.pack({ format, now, "" }), 0 }
end
for pr = 1, 3 do
  local made = redis.pcall("XGROUP", "CREATE", STREAM[pr], GROUP, "0", "MKSTREAM")
  if made.err and not string.find(made.err, "BUSYGROUP", 1, true) then
    error(made.err)
  end
end
return answer({ format, now, note_home() })
