#!lua flags=allow-oom
-- Take jobs over into version `to`, with their live runs, in one write.  Of hundreds of runs no more than `limit` come along:
-- of which jobs there are more is told, with the place of the last one that came, and they are the caller's to bring, by
-- calls with `after`.
promote()
local TO, left = A.to, A.limit
local moved, leaving_of, rest = {}, {}, {}
local leased = {} -- they take their entries last, when all that is to be written is known

-- as it stands; what it holds in a stream is given up there and taken here
local function move_run(run)
  local state, visible, owner, til, len, why = run.st, run.vis, run.own, run.til, run.len, run.why
  step_out(run)
  run.v = TO ~= DEFAULT and TO or nil
  enter(TO)
  if state == "leased" then
    run.own, run.til, run.len = owner, til, len
    put("zset", LEASES, run.id, til)
    leased[#leased + 1] = run
  else
    stand(run, state, visible)
    run.why = why
  end
  touch(run)
  if state == "held" then
    add_arrived(run)
  end
end

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
    move_run(run)
  end
  if #places == left and (left > 0 or call("ZCARD", live_key(id)) > 0) then
    rest[#rest + 1] = { id, places[#places] or "" }
  end
  left = left - #places
end

-- no lease of theirs may last longer here than it was given for, and what was visible there is visible here
local function bring_clock(version)
  for _, field in ipairs({ "granted", "clock" }) do
    set_count_in(TO, field, math.max(count_in(TO, field), count_in(version, field)))
  end
end

local function move(job)
  local id, before = job.id, job.v
  if before ~= TO and A.after then
    return -- somebody moved it on meanwhile, and its runs with it
  elseif before ~= TO then
    local next_due, last_due = job.next, job.last
    move_job(job, false, false)
    job.v, job.rev = TO, job.rev + 1
    job.fields.v, job.fields.rev = text(TO), text(job.rev)
    move_job(job, next_due, last_due)
    known_versions[id] = TO
    count_job(before, -1)
    count_job(TO, 1)
    bring_clock(before)
    moved[#moved + 1] = id
    leaving_of[before] = leaving_of[before] or {}
    table.insert(leaving_of[before], id)
  end
  move_runs_of(id)
end

-- the ends of these jobs that nobody has read yet
local function unread(version, ids)
  local is_theirs, found = {}, {}
  for _, id in ipairs(ids) do
    is_theirs[id] = true
  end
  for _, item in ipairs(call("XRANGE", key_of(version, "feed"), "-", "+")) do
    local entry = tonumber(item[2][2]) > 0 and cmsgpack.unpack(item[2][4])
    for _, each in ipairs(entry and entry.ends or {}) do
      if is_theirs[each[2]] then
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
  end
end
for version, ids in pairs(leaving_of) do
  for _, each in ipairs(unread(version, ids)) do
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
for _, run in ipairs(leased) do
  enter(TO)
  run.ent = take_entries(run.pr, 1, run.own)[1]
end
return answer_told({ answers, rest }, answers)
