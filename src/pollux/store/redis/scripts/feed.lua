#!lua flags=no-writes
-- The oldest entries.  Those that the caller has read before come without their text; one that is not of our making comes
-- with an empty text, and all that it says.
local known, items = {}, {}
for _, id in ipairs(A.known) do
  known[text(id) .. "-0"] = true
end
for n, item in ipairs(call("XRANGE", FEED, "-", "+", "COUNT", A.limit)) do
  local fields = item[2]
  if known[item[1]] then
    items[n] = { item[1] }
  elseif fields[1] == "ends" and fields[3] == "entry" then
    items[n] = { item[1], fields[4] }
  else
    items[n] = { item[1], "", table.concat(fields, " ") }
  end
end
return { text(now), bell_place(BELL_FEED), items }
