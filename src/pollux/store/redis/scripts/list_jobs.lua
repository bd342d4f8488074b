#!lua flags=no-writes
-- Jobs by id, those after that one; of a missing one its id alone.
local rows = {}
for n, id in ipairs(call("ZRANGEBYLEX", JOBS, A.after and "(" .. A.after or "-", "+", "LIMIT", 0, A.limit)) do
  rows[n] = job_row(id) or { id }
end
return answer(rows)
