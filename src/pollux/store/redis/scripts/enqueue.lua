#!lua
-- Accept runs; `rows` as `admit_row` takes them.  Answers true if all were accepted.
promote()
local answers, accepted, waits = {}, 0, {}
local made = {} -- by job: a run that this call has made, and that overlaps

-- how many wait in a version, ready or held
local function waiting(version)
  if not waits[version] then
    local count = call("ZCARD", key_of(version, "held"))
    for pr = 1, 3 do
      count = count + call("ZCARD", key_of(version, "queue:" .. pr))
    end
    waits[version] = count
  end
  return waits[version]
end

-- the id of a live run that keeps this one out, if the caller wants it so
local function kept_out_by(row)
  local job = A.unless_live and not has_run(row[1]) and read_job(row[2].job)
  return job and (made[job.id] or first_overlapping(job, live_key(job.id), function()
    return true
  end))
end

local ids = {}
for n, row in ipairs(A.rows) do
  ids[n] = row[1]
end
expect_new(ids)
for n, row in ipairs(A.rows) do
  local kind, detail, version = "full", "", version_of(row[2].job) or OWN
  if waiting(version) < A.ready_max or has_run(row[1]) then
    local holder = kept_out_by(row)
    if holder then
      kind, detail = "overlapped", holder
    else
      kind, detail = accept(row)
    end
  end
  if kind == "ok" then
    made[row[2].job] = made[row[2].job] or (overlaps(row[2]) and row[1]) or nil
    waits[version] = waits[version] + 1
    accepted = accepted + 1
  end
  answers[n] = { kind, detail }
end
tell_gathered()
if accepted > 0 then
  local written = {}
  write_notes(A.notes, written)
  tell_notes(written)
end
return answer_told(accepted == #A.rows or answers, in_words(answers))
