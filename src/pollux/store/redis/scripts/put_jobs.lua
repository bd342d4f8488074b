#!lua
-- Add or replace definitions.  A put is {id, definition, release, source, enabled, once, revision or false}.
local TAKEN_MAX = 1000 -- runs of deleted jobs that come along
local written, answers, added, left = {}, {}, 0, TAKEN_MAX

-- as it is written by now: the same job may be put twice in a call
local function stored_text(job)
  local row = call("HMGET", job_key(job.id), "def", "rel", "src")
  local fields = job.fields
  return fields.def or row[1], tonumber(fields.rel or row[2]), fields.src or row[3]
end

-- What is still leased of a deleted job is in its place a run of the new one, whose leader must hear of its end.
local function take_runs_of(id)
  local places = left > 0 and call("ZRANGE", live_key(id), 0, left - 1) or {}
  left = left - #places
  for _, place in ipairs(places) do
    local run = read_run(string.sub(place, 16))
    if run and run.st == "leased" and (run.v or DEFAULT) ~= OWN then
      bring_clock(run.v or DEFAULT, OWN)
      move_run(run, OWN)
      rings.runs = true
    end
  end
end

local function put_job(new)
  local id, revision = new.id, new.revision
  local stored = read_job(id)
  if not stored then
    if revision and revision ~= 0 then
      return { "conflict", 0, "gone", "" }
    end
    local rev, last = recall_job(id)
    add_job(id, new, rev + 1, false, last, false, OWN)
    if rev > 0 then
      take_runs_of(id)
    end
    added = added + 1
    return { "ok", rev + 1, "", "" }
  end
  if stored.v ~= OWN then
    return { "conflict", stored.rev, "version", text(stored.v) }
  end
  local def, rel, src = stored_text(stored)
  if def == new.def then
    return { "already", stored.rev, "", "" }
  end
  if revision and revision ~= stored.rev then
    return { "conflict", stored.rev, "revision", text(stored.rev) }
  end
  if new.src ~= src then
    return { "conflict", stored.rev, "source", src }
  end
  if new.rel < rel then
    return { "conflict", stored.rev, "release", text(rel) }
  end
  local next_due, last_due = stored.next, stored.last
  move_job(stored, false, false)
  drop("zset", SPENT, id)
  define_job(stored, new, stored.rev + 1)
  move_job(stored, next_due, last_due)
  return { "ok", stored.rev, "", "" }
end

local seen = {}
for n, new in ipairs(A.puts) do
  answers[n] = put_job(new)
  if answers[n][1] == "ok" and not seen[new.id] then
    seen[new.id] = true
    written[#written + 1] = new.id
  end
end

if #written > 0 then
  use(OWN)
  enter(OWN)
  tell({ type = "put", ids = written, added = added })
end
local said = in_words(answers)
local refusal = A.told and disbelieved(answers, said)
if refusal then
  return refusal
end
give_entries()
return answer_told(answers, said)
