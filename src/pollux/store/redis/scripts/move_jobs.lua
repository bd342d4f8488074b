#!lua flags=allow-oom
-- Move jobs into version `to`, with their live runs, in one write.  Of hundreds of runs no more than `limit` come along:
-- of which jobs there are more is told and noted, with the place of the last one that came, and they are the caller's to
-- bring, by calls with `after`.
promote()
local TO, left = A.to, A.limit
local moved, leaving_of, rest = {}, {}, {}

-- true if none is left behind
local function move_runs_of(id)
  local from = A.after and "(" .. A.after or "-"
  local places, found = call("ZRANGEBYLEX", fresh(live_key(id)), from, "+", "LIMIT", 0, left), {}
  for _, place in ipairs(places) do
    local run = read_run(string.sub(place, 16))
    if run and (run.v or DEFAULT) ~= TO then
      found[#found + 1] = run
    end
  end
  table.sort(found, function(one, other) return (one.q or one.n or 0) < (other.q or other.n or 0) end)
  for _, run in ipairs(found) do
    move_run(run, TO)
  end
  local is_more = #places == left and (left > 0 or call("ZCARD", live_key(id)) > 0)
  if is_more then
    rest[#rest + 1] = { id, places[#places] or "" }
    put("hash", UNFINISHED, id, cmsgpack.pack({ places[#places] or "", TO }))
  else
    drop("hash", UNFINISHED, id)
  end
  left = left - #places
  return not is_more
end

-- The firing of a job that waits there already.  What a move that was cut off left may have ended where it was, and that
-- was told there: so the firing is looked at when all have come.
local function waiting_there(job)
  local run = job.behind and read_run(job.behind)
  return run and run.job == job.id and run.st == "held" and (run.v or DEFAULT) == TO and run
end

-- Nothing is left to bring: it is gone, or somebody moved it on, and its runs with it.
local function leave_be(id)
  local noted = unfinished(id)
  if noted and not noted[3] and noted[2] == TO then
    drop("hash", UNFINISHED, id)
  end
end

local function move(job)
  local id, before = job.id, job.v
  if before ~= TO and A.after then
    return leave_be(id)
  elseif before ~= TO then
    local next_due, last_due = job.next, job.last
    move_job(job, false, false)
    job.v, job.rev = TO, job.rev + 1
    job.fields.v, job.fields.rev = text(TO), text(job.rev)
    move_job(job, next_due, last_due)
    known_versions[id] = TO
    count_job(before, -1)
    count_job(TO, 1)
    bring_clock(before, TO)
    moved[#moved + 1] = id
    leaving_of[before] = leaving_of[before] or {}
    table.insert(leaving_of[before], id)
  end
  local waiting = before == TO and unfinished(id) and waiting_there(job)
  if move_runs_of(id) and waiting then
    add_arrived(waiting)
  end
end

-- an entry by its number and by when its first end was: see `Ended.mark`
local function mark_of(number, ended)
  return string.format("%.0f %.0f", tonumber(number) or 0, tonumber(ended) or 0)
end

-- the entries that a job has learnt from
local function learnt_by(id)
  local found = {}
  local is_whole, memory = pcall(cjson.decode, call("HGET", job_key(id), "mem") or "")
  for _, mark in ipairs(is_whole and type(memory) == "table" and type(memory.learnt) == "table" and memory.learnt or {}) do
    if type(mark) == "table" then
      found[mark_of(mark[1], mark[2])] = true
    end
  end
  return found
end

-- the ends of these jobs that they have not learnt yet
local function unlearnt(version, ids)
  local learnt, found = {}, {}
  for _, id in ipairs(ids) do
    learnt[id] = learnt_by(id)
  end
  for _, item in ipairs(call("XRANGE", key_of(version, "feed"), "-", "+")) do
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
  return found
end

-- what the answers are is known before anything is moved: entries of leased runs are taken on the spot
local answers, seen, old_ends = {}, {}, {}
for n, id in ipairs(A.ids) do
  local job = read_job(id)
  answers[n] = not job and "lost" or (seen[id] or job.v == TO) and "already" or "ok"
  seen[id] = true
end
local refusal = A.told and disbelieved({ answers, {} }, answers)
if refusal then
  return refusal
end
for _, id in ipairs(A.ids) do
  local job = read_job(id)
  if job then
    move(job)
  else
    leave_be(id)
  end
end
for version, ids in pairs(leaving_of) do
  for _, each in ipairs(unlearnt(version, ids)) do
    old_ends[#old_ends + 1] = each
  end
  enter(version)
  tell({ type = "moved", ids = ids })
end
if #moved > 0 then
  use(TO)
  enter(TO)
  tell({ type = "moved", ids = moved })
end
tell_gathered()
if #old_ends > 0 then
  enter(TO)
  tell({ type = "ended", ends = old_ends })
end
give_entries()
return answer_told({ answers, rest }, answers)
