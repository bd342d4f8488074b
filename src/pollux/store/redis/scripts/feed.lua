#!lua flags=no-writes
-- The oldest entries.  Those that the caller has read before come without their text.
local known, items = {}, {}
for _, id in ipairs(A.known) do
  known[text(id) .. "-0"] = true
end
for n, item in ipairs(call("XRANGE", FEED, "-", "+", "COUNT", A.limit)) do
  items[n] = known[item[1]] and { item[1] } or { item[1], item[2][4] }
end
return { text(now), bell_place(BELL_FEED), items }
