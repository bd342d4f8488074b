#!lua flags=no-writes
-- Lines after a number, oldest first; or from the end, those before a number.
local found
if A.newest then
  local from = A.after > 0 and "(" .. text(A.after) .. "-0" or "+"
  found = call("XREVRANGE", LOG, from, "-", "COUNT", A.limit)
else
  found = call("XRANGE", LOG, "(" .. text(A.after) .. "-0", "+", "COUNT", A.limit)
end
local lines = {}
for n, item in ipairs(found) do
  lines[n] = item[2][2]
end
return answer(lines)
