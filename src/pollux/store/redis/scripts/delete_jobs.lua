#!lua flags=allow-oom
-- Take jobs away, and end their runs that wait, in one write.  Of hundreds of runs no more than `limit` are looked at: of
-- which jobs there are more is told, and they are the caller's to end, as far as they are not younger than `upto`.
promote()
local deleted, answers, rest, left = {}, {}, {}, A.limit

local function cancel_waiting_of(id)
  local count = call("ZCARD", live_key(id))
  if count > left then
    rest[#rest + 1], count = id, left
  end
  left = left - count
  for _, place in ipairs(count > 0 and call("ZRANGE", live_key(id), 0, count - 1) or {}) do
    local run = read_run(string.sub(place, 16))
    if run and run.st ~= "leased" then
      add_end(run, cancel_waiting(run, A.reason ~= "" and A.reason or JOB_GONE))
    end
  end
end

local seen = {}

local function delete(id)
  local job = read_job(id)
  if not seen[id] then -- of one that is gone, too: whoever took it may have been cut off
    seen[id] = true
    cancel_waiting_of(id)
  end
  if not job then
    return "lost"
  end
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
return answer_told({ answers, rest, count_of("seq") }, answers)
