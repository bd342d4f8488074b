-- Faults of the records and their repair, a page at a time.
local call, text, pad, zadd, hset, zrem = op.call, op.text, op.pad, writes.zadd, writes.hset, writes.zrem

local function ends_in_feed(version)
  local ends = 0
  for _, item in ipairs(call("XRANGE", op.keys_in(version).feed, "-", "+")) do
    ends = ends + (item[2][1] == "ends" and tonumber(item[2][2]) or 0)
  end
  return ends
end

local function is_due_of(job, member)
  return job and job.on and job.next and job.v == op.args.version and pad(job.next) .. job.id == member
end

-- stored counts and real ones, of the feeds and of the finished runs of these jobs: {name, stored, counted} where they differ
local function wrong_counts(mends)
  local wrong, counters = {}, op.keys.counters
  for _, version in ipairs(op.args.versions) do
    local stored, counted = writes.count_in(version, "ends"), ends_in_feed(version)
    if stored ~= counted then
      wrong[#wrong + 1] = { "ends in version " .. text(version), stored, counted }
      if mends then
        writes.set_count_in(version, "ends", counted)
      end
    end
  end
  for _, job in ipairs(op.args.jobs) do
    for kind, name in pairs({ history = "finished runs of ", failed = "failed runs of " }) do
      local member = runs.counter_name(job, kind)
      local stored, counted = tonumber(call("ZSCORE", counters, member) or 0), call("ZCARD", runs.history_key(job, kind))
      if stored ~= counted then
        wrong[#wrong + 1] = { name .. job, stored, counted }
        if mends and counted > 0 then
          zadd(counters, member, counted)
        elseif mends then
          zrem(counters, member)
        end
      end
    end
  end
  return wrong
end

register.read("check_counts", function()
  return wrong_counts(false)
end)

register.write("mend_counts", "allow-oom", function()
  return wrong_counts(true)
end)

-- jobs that are missing in an index: {id, words} for each; and due times of a version that belong to no job
register.read("check_jobs", function()
  local wrong, without_job = {}, {}
  for _, id in ipairs(op.args.ids) do
    local job = call("TYPE", op.keys.job .. id).ok == "hash" and jobs.read(id)
    if job then
      if not call("ZSCORE", op.keys.jobs, id) then
        wrong[#wrong + 1] = { id, "is not in the list of jobs" }
      end
      if job.next and job.on and not call("ZSCORE", op.keys_in(job.v).due, pad(job.next) .. id) then
        wrong[#wrong + 1] = { id, "is not among the due times" }
      end
    else
      wrong[#wrong + 1] = { id, "there is no such job, or it cannot be read" }
    end
  end
  for _, member in ipairs(op.args.dues) do
    if not is_due_of(jobs.read(string.sub(member, 16)), member) then
      without_job[#without_job + 1] = member
    end
  end
  return { wrong, without_job }
end)

-- add these jobs to their indexes; remove names and due times without a job
register.write("mend_jobs", "allow-oom", function()
  for _, id in ipairs(op.args.ids) do
    local kind = call("TYPE", op.keys.job .. id).ok
    local job = kind == "hash" and jobs.read(id)
    if job then
      zadd(op.keys.jobs, id, "0")
      if job.next and job.on then
        zadd(op.keys_in(job.v).due, pad(job.next) .. id, "0")
      end
    elseif kind == "none" then
      zrem(op.keys.jobs, id)
    end
  end
  for _, member in ipairs(op.args.dues) do
    if not is_due_of(jobs.read(string.sub(member, 16)), member) then
      zrem(op.keys_in(op.args.version).due, member)
    end
  end
  return true
end)

-- members of this index whose run is not in it: {member, words} for each
local function wrong_members()
  local wrong = {}
  for _, member in ipairs(op.args.members) do
    local run, why = places.run_at(string.sub(member, op.args.begins))
    if not run then
      wrong[#wrong + 1] = { member, why }
    elseif not places.is_of(run, op.args.key, member) then
      wrong[#wrong + 1] = { member, "it is " .. run.st .. ", and belongs elsewhere" }
    end
  end
  return wrong
end

register.read("check_members", wrong_members)

register.write("mend_members", "allow-oom", function()
  local wrong = wrong_members()
  for _, each in ipairs(wrong) do
    zrem(op.args.key, each[1])
  end
  return #wrong
end)

local function add_faults(run, add)
  local wanted = {}
  for _, place in ipairs(places.of(run)) do
    wanted[place[1] .. "\n" .. place[2]] = true
    local score = call("ZSCORE", place[1], place[2])
    if not score then
      add(run.id, "places", "is " .. run.st .. ", but not in " .. places.short(place[1]))
    elseif tonumber(score) ~= place[3] then
      add(run.id, "places", "stands at another time in " .. places.short(place[1]))
    end
  end
  for _, place in ipairs(places.all(run)) do
    if not wanted[place[1] .. "\n" .. place[2]] and call("ZSCORE", place[1], place[2]) then
      add(run.id, "places", "is " .. run.st .. ", but also in " .. places.short(place[1]))
    end
  end
  local is_live = runs.is_live(run)
  if is_live and run.key and call("HGET", op.keys.unique, run.key) ~= run.id then
    add(run.id, "places", "does not hold its key " .. run.key)
  end
  if run.st == "leased" and (not run.tok or run.tok == "") then
    add(run.id, "leases", "has no token")
  end
  if jobs.unfinished(run.job) then
    return -- the leader puts it in order
  end
  local version, own = jobs.version_of(run.job), run.v or op.DEFAULT
  if (run.st == "ready" or run.st == "held") and not version then
    add(run.id, "orphans", "waits for job " .. run.job)
  elseif is_live and version and version ~= own then
    add(run.id, "versions", "is in version " .. text(own) .. ", its job in " .. text(version))
  end
end

-- faults of these runs: {id, rule, words} for each
register.read("check_runs", function()
  local wrong = {}
  local function add(id, rule, words)
    wrong[#wrong + 1] = { id, rule, words }
  end
  for _, id in ipairs(op.args.ids) do
    local run, why = places.run_at(id)
    if run then
      add_faults(run, add)
    elseif call("EXISTS", op.keys.run .. id) == 1 then
      add(id, "records", why)
    end
  end
  return wrong
end)

-- add these runs to the indexes of their state, and remove them from all others: the hash is the truth
register.write("mend_runs", "allow-oom", function()
  local mended = 0
  for _, id in ipairs(op.args.ids) do
    local run = places.run_at(id)
    if run then
      for _, place in ipairs(places.all(run)) do
        zrem(place[1], place[2])
      end
      for _, place in ipairs(places.of(run)) do
        zadd(place[1], place[2], place[3])
      end
      if runs.is_live(run) and run.key and not writes.field_of(op.keys.unique, run.key) then
        hset(op.keys.unique, run.key, id)
      end
      mended = mended + 1
    end
  end
  return mended
end)
