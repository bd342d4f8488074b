#!lua flags=allow-oom
-- Delete jobs, and end their waiting runs, in one write, at most `limit` runs: the reply names the jobs with more, and
-- they are stored in UNFINISHED.
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
