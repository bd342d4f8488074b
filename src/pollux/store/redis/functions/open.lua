-- Create the streams and the group, and answer {time, homes}; a store of another format is refused, and not changed.
local call, check = op.call, writes.check
local HOMES_MAX = 20

-- the last servers that took our writes, each with the count at which it began
local function note_home()
  local key, run_id = op.keys.home, op.args.home
  local homes = call("HGET", key, "homes") or ""
  if call("HGET", key, "run") == run_id then
    return homes
  end
  local latest = {}
  for each in string.gmatch(homes, "%S+") do
    latest[#latest + 1] = each
  end
  latest[#latest + 1] = run_id .. ":" .. (call("HGET", key, "count") or "0")
  homes = table.concat(latest, " ", math.max(1, #latest - HOMES_MAX + 1))
  call("HSET", key, "run", run_id, "home", latest[#latest], "homes", homes)
  return homes
end

register.write("open", "allow-oom", function()
  local here = op.here
  for pr = 1, 3 do
    check(here.streams[pr], "stream")
  end
  check(op.keys.home, "hash")
  local format = call("HGET", here.meta, "format")
  if not format then
    call("HSET", here.meta, "format", op.args.format)
    format = op.text(op.args.format)
  end
  if tonumber(format) ~= op.args.format then
    error({ err = "FORMAT " .. format })
  end
  for pr = 1, 3 do
    local made = redis.pcall("XGROUP", "CREATE", here.streams[pr], streams.GROUP, "0", "MKSTREAM")
    if made.err and not string.find(made.err, "BUSYGROUP", 1, true) then
      error(made.err)
    end
  end
  return { op.now, note_home() }
end)
