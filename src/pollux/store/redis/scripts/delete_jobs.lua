#!lua flags=allow-oom
-- Take jobs away, and end their runs that wait, in one write.  A job with more live runs than are left of `limit` is told
-- to be too `big` and stays as it is, unless `anyway`: then the rest of its runs is the caller's to end.
promote()
local deleted, answers, left = {}, {}, A.limit

local function cancel_waiting_of(id)
  for _, place in ipairs(call("ZRANGE", fresh(live_key(id)), 0, left - 1)) do
    local run = read_run(string.sub(place, 16))
    if run and run.st ~= "leased" then
      add_end(run, cancel_waiting(run, A.reason ~= "" and A.reason or JOB_GONE))
    end
    left = left - 1
  end
end

local function delete(id)
  local job = read_job(id)
  if not job then
    return "lost"
  end
  if not A.anyway and call("ZCARD", live_key(id)) > left then
    return "big"
  end
  cancel_waiting_of(id)
  drop_job(job)
  deleted[job.v] = deleted[job.v] or {}
  table.insert(deleted[job.v], id)
  return "ok"
end

for n, id in ipairs(A.ids) do
  answers[n] = delete(id)
end
tell_gathered()
for version, ids in pairs(deleted) do
  enter(version)
  tell({ type = "deleted", ids = ids })
end
return answer(answers)
