#!lua flags=no-writes
local rows = {}
for n, id in ipairs(A.ids) do
  rows[n] = job_row(id)
end
return answer(rows)
