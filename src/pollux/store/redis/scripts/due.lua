#!lua flags=no-writes
-- Jobs by (next due, id), those after that pair and before that time.
local after = A.after and "(" .. pad(A.after[1]) .. A.after[2] or "-"
local rows = {}
for n, place in ipairs(call("ZRANGEBYLEX", DUE, after, "(" .. pad(A.before), "LIMIT", 0, A.limit)) do
  rows[n] = job_row(string.sub(place, 16))
end
return answer(rows)
