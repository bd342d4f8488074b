#!lua flags=allow-oom
-- Take jobs away, and end their runs that wait.
local ends, deleted, answers = {}, {}, {}
for n, id in ipairs(A.ids) do
  local job = read_job(id)
  if job then
    drop_job(id, job)
    for _, place in ipairs(call("ZRANGE", live_key(id), 0, -1)) do
      local run = read_run(string.sub(place, 16))
      if run.st ~= "leased" then
        ends[#ends + 1] = cancel_waiting(run, A.reason ~= "" and A.reason or JOB_GONE)
      end
    end
    deleted[#deleted + 1] = id
    answers[n] = "ok"
  else
    answers[n] = "lost"
  end
end
tell_ends(ends)
if #deleted > 0 then
  tell({ type = "deleted", ids = deleted })
end
return finished_call(answers)
