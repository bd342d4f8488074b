#!lua flags=allow-oom
-- Append lines that were chained to the line `before`; refused if another one is the last by now.
local last = call("XREVRANGE", LOG, "+", "-", "COUNT", 1)[1]
local seq = last and tonumber(string.match(last[1], "^%d+")) or 0
if seq ~= A.before then
  return answer(false)
end
for n, line in ipairs(A.lines) do
  call("XADD", LOG, text(seq + n) .. "-0", "line", line)
end
return answer(true)
