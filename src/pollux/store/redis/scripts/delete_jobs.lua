#!lua flags=allow-oom
-- Take jobs away, and end their runs that wait, in one write.  Of hundreds of runs no more than `limit` are looked at: of
-- which jobs there are more is told, and noted.
promote()
local deleted, answers, rest, left = {}, {}, {}, A.limit
local upto, why = count_of("seq"), A.reason ~= "" and A.reason or JOB_GONE

local function end_runs_of(id)
  local looked, is_more = end_waiting(id, upto, false, why, left)
  left = left - looked
  if is_more then
    rest[#rest + 1] = id
  end
end

local seen = {}

local function delete(id)
  local job = read_job(id)
  if not seen[id] then -- of one that is gone, too: an older release that was cut off has noted nothing
    seen[id] = true
    end_runs_of(id)
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
return answer_told({ answers, rest }, answers)
