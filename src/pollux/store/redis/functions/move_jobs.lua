-- Move jobs into version `to`, with their live runs, in one write.  Of hundreds of runs no more than `limit` come along:
-- of which jobs there are more is answered and noted, with the place of the last one that came, and they are the caller's to
-- bring, by calls with `after`.
local call, text, DEFAULT = op.call, op.text, op.DEFAULT
local hset, hdel = writes.hset, writes.hdel

-- an entry by its number and by when its first end was: see `Ended.mark`
local function mark_of(number, ended)
  return string.format("%.0f %.0f", tonumber(number) or 0, tonumber(ended) or 0)
end

-- the entries that a job has learnt from
local function learnt_by(id)
  local found, memory = {}, jobs.memory(id)
  for _, mark in ipairs(type(memory.learnt) == "table" and memory.learnt or {}) do
    if type(mark) == "table" then
      found[mark_of(mark[1], mark[2])] = true
    end
  end
  return found
end

-- the ends of these jobs that they have not learnt yet
local function add_unlearnt(found, version, ids)
  local learnt = {}
  for _, id in ipairs(ids) do
    learnt[id] = learnt_by(id)
  end
  for _, item in ipairs(call("XRANGE", op.keys_in(version).feed, "-", "+")) do
    local is_whole, entry = pcall(cmsgpack.unpack, (tonumber(item[2][2]) or 0) > 0 and item[2][4] or "")
    local ends = is_whole and type(entry) == "table" and type(entry.ends) == "table" and entry.ends or {}
    local mark = mark_of(string.match(item[1], "^%d+"), type(ends[1]) == "table" and ends[1][6])
    for _, each in ipairs(ends) do
      local its = type(each) == "table" and learnt[each[2] or false]
      if its and not its[mark] then
        each[9] = each[9] == nil and cjson.null or each[9]
        found[#found + 1] = each
      end
    end
  end
end

-- The firing of a job that waits there already.  What a move that was cut off left may have ended where it was, and its
-- leader learnt it there: so the firing is looked at when all have come.
local function waiting_there(job, to)
  local run = job.behind and runs.read(job.behind)
  return run and run.job == job.id and run.st == "held" and (run.v or DEFAULT) == to and run
end

-- Nothing is left to bring: the job was deleted, or moved on, and its runs with it.
local function leave_be(id, to)
  local noted = jobs.unfinished(id)
  if noted and not noted[3] and noted[2] == to then
    hdel(op.keys.unfinished, id)
  end
end

local function move_job(job, to)
  local before, next_due, last_due = job.v, job.next, job.last
  jobs.set_times(job, false, false)
  job.v, job.rev = to, job.rev + 1
  job.fields.v, job.fields.rev = text(to), text(job.rev)
  jobs.set_times(job, next_due, last_due)
  op.job_versions[job.id] = to
  jobs.count(before, -1)
  jobs.count(to, 1)
  moves.bring_clock(before, to)
end

register.write("move_jobs", "allow-oom", function()
  streams.promote()
  local args, to, left = op.args, op.args.to, op.args.limit
  local moved, leaving, rest, answers, old_ends = {}, {}, {}, {}, {}

  -- true if none is left behind
  local function move_runs_of(id)
    local live, found = runs.live_key(id), {}
    local from = args.after and "(" .. args.after or "-"
    local places = call("ZRANGEBYLEX", writes.flush(live), from, "+", "LIMIT", 0, left)
    for _, place in ipairs(places) do
      local run = runs.read(runs.id_by_due(place))
      if run and (run.v or DEFAULT) ~= to then
        found[#found + 1] = run
      end
    end
    table.sort(found, function(one, other) return (one.q or one.n or 0) < (other.q or other.n or 0) end)
    for _, run in ipairs(found) do
      moves.move(run, to)
    end
    local is_more = #places == left and (left > 0 or call("ZCARD", live) > 0)
    if is_more then
      local last = places[#places] or ""
      rest[#rest + 1] = { id, last }
      hset(op.keys.unfinished, id, cmsgpack.pack({ last, to }))
    else
      hdel(op.keys.unfinished, id)
    end
    left = left - #places
    return not is_more
  end

  local function move(job)
    local id, before = job.id, job.v
    if before ~= to and args.after then
      return leave_be(id, to)
    elseif before ~= to then
      move_job(job, to)
      moved[#moved + 1] = id
      leaving[before] = leaving[before] or {}
      table.insert(leaving[before], id)
    end
    local waiting = before == to and jobs.unfinished(id) and waiting_there(job, to)
    if move_runs_of(id) and waiting then
      feed.add_arrived(waiting)
    end
  end

  for n, id in ipairs(args.ids) do
    local job = jobs.read(id)
    answers[n] = not job and "lost" or job.v == to and "already" or "ok"
    if job then
      move(job)
    else
      leave_be(id, to)
    end
  end
  for version, ids in pairs(leaving) do
    add_unlearnt(old_ends, version, ids)
    op.enter(version)
    feed.add({ type = "moved", ids = ids })
  end
  if #moved > 0 then
    versions.use(to)
    op.enter(to)
    feed.add({ type = "moved", ids = moved })
  end
  feed.add_gathered()
  if #old_ends > 0 then
    op.enter(to)
    feed.add({ type = "ended", ends = old_ends })
  end
  audit.add(answers)
  moves.give_entries()
  return { answers, rest }
end)
