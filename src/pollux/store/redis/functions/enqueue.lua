-- Accept runs; `rows` as `runs.admit_row` takes them.  Answers true if all were accepted.
local call = op.call

-- how many wait in a version, ready or held
local function count_waiting(version)
  local keys = op.keys_in(version)
  local count = call("ZCARD", keys.held)
  for pr = 1, 3 do
    count = count + call("ZCARD", keys.queues[pr])
  end
  return count
end

local function any()
  return true
end

-- the id of a live run that keeps this one out, if the caller asks for that; `made`: by job, one that overlaps of this call
local function overlapped_by(row, made)
  local job = op.args.unless_live and not runs.exists(row[1]) and jobs.read(row[2].job)
  return job and (made[job.id] or overlap.first(job, runs.live_key(job.id), any))
end

register.write("enqueue", "", function()
  streams.promote()
  local args, answers, accepted, waiting, made, ids = op.args, {}, 0, {}, {}, {}
  local rows = args.rows
  for n, row in ipairs(rows) do
    ids[n] = row[1]
  end
  runs.expect_new(ids)
  for n, row in ipairs(rows) do
    local kind, detail, run = "full", "", row[2]
    local version = jobs.version_of(run.job) or args.v
    waiting[version] = waiting[version] or count_waiting(version)
    if waiting[version] < args.ready_max or runs.exists(row[1]) then
      local holder = overlapped_by(row, made)
      if holder then
        kind, detail = "overlapped", holder
      else
        kind, detail = runs.accept(row)
      end
    end
    if kind == "ok" then
      made[run.job] = made[run.job] or (overlap.is_met(run) and row[1]) or nil
      waiting[version] = waiting[version] + 1
      accepted = accepted + 1
    end
    answers[n] = { kind, detail }
  end
  feed.add_gathered()
  if accepted > 0 then
    local written = {}
    notes.write(args.notes, written)
    notes.add_changed(written)
  end
  audit.add(answers)
  return accepted == #rows or answers
end)
