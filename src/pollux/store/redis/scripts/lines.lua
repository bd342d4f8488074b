#!lua flags=no-writes
-- {visible by now, earliest visible time or false} of each priority, of our version or of all of them.
local found = {}
for pr = 1, 3 do
  local ready, first = 0, false
  for each in pairs(versions_known()) do
    if A.v == 0 or each == OWN then
      local line = key_of(each, "line:" .. pr)
      local head = call("ZRANGE", line, 0, 0, "WITHSCORES")
      ready = ready + call("ZCOUNT", line, "-inf", now)
      if head[2] and (not first or tonumber(head[2]) < first) then
        first = tonumber(head[2])
      end
    end
  end
  found[pr] = { ready, first }
end
return answer(found)
