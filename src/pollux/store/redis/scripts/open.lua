#!lua flags=allow-oom
-- Make what must be there, and say which format is; a store of another one is left as it is.
local format = call("HGET", META, "format")
if not format then
  call("HSET", META, "format", A.format)
  format = text(A.format)
end
if tonumber(format) == A.format then
  for pr = 1, 3 do
    local made = redis.pcall("XGROUP", "CREATE", STREAM[pr], GROUP, "0", "MKSTREAM")
    if made.err and not string.find(made.err, "BUSYGROUP", 1, true) then
      error(made.err)
    end
  end
end
return answer({ format, now })
