#!lua flags=no-writes
-- Rows of runs with their places: live ones by (due, id) after a place, or finished ones from some indexes, below a
-- place (newest first) or above it.
local found = {}
if A.kind == "live" then
  local index = A.is_held and HELD or (A.job and live_key(A.job) or LIVE)
  for n, place in ipairs(call("ZRANGEBYLEX", index, A.after and "(" .. pad(A.after[1]) .. A.after[2] or "-", "+",
    "LIMIT", 0, A.limit)) do
    found[n] = { place, string.sub(place, 16) }
  end
else
  local histories = A.job and { history_key(A.job, "history"), history_key(A.job, "failed"), history_key(A.job, "dead") }
    or { FINISHED_PLAIN, FINISHED_UNCHANGED, FINISHED_DEAD }
  for _, history in ipairs(histories) do
    local places
    if A.kind == "newest" then
      places = call("ZREVRANGEBYLEX", history, A.after and "(" .. A.after or "+", "-", "LIMIT", 0, A.limit)
    else
      places = call("ZRANGEBYLEX", history, A.after and "[" .. A.after or "-", "+", "LIMIT", 0, A.limit + 1)
    end
    for _, place in ipairs(places) do
      found[#found + 1] = { string.sub(place, 1, 29), place_id(place) }
    end
  end
  table.sort(found, function(one, other)
    if A.kind == "newest" then
      return one[1] > other[1]
    end
    return one[1] < other[1]
  end)
end
local ids, places = {}, {}
for _, each in ipairs(found) do
  if #ids == A.limit then
    break
  end
  if A.kind ~= "oldest" or each[1] ~= A.after then
    places[#places + 1] = each[1]
    ids[#ids + 1] = each[2]
  end
end
return add_parts({ cmsgpack.pack(places) }, ids)
