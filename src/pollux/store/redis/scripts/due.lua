#!lua flags=no-writes
-- Jobs by (next due, id), those after that pair and before that time; a missing one has no definition.
local after = A.after and "(" .. pad(A.after[1]) .. A.after[2] or "-"
local rows = {}
for n, place in ipairs(call("ZRANGEBYLEX", DUE, after, "(" .. pad(A.before), "LIMIT", 0, A.limit)) do
  local id = string.sub(place, 16)
  local row = job_row(id) or { id, 0, false, false, false, "", OWN }
  row[3] = row[3] or (tonumber(string.sub(place, 1, 15)) or 1e14) - 1e14
  rows[n] = row
end
return answer(rows)
