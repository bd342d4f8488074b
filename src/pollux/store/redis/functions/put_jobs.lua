-- Add or replace definitions.  A put is {id, definition, release, source, enabled, once, revision or false}.  Answers
-- {kind, revision, what is against it, what is stored} for each.
local call, text = op.call, op.text
local TAKEN_MAX = 1000 -- runs of deleted jobs that come along

-- as it is written by now: the same job may be put twice in a call
local function stored_text(job)
  local row = call("HMGET", op.keys.job .. job.id, "def", "rel", "src")
  local fields = job.fields
  return fields.def or row[1], tonumber(fields.rel or row[2]), fields.src or row[3]
end

-- What is still leased of a deleted job is in its place a run of the new one, whose leader must learn of its end.
local function take_runs_of(id, limit)
  local own = op.args.v
  local places = limit > 0 and call("ZRANGE", runs.live_key(id), 0, limit - 1) or {}
  for _, place in ipairs(places) do
    local run = runs.read(runs.id_by_due(place))
    local version = run and run.v or op.DEFAULT
    if run and run.st == "leased" and version ~= own then
      moves.bring_clock(version, own)
      moves.move(run, own)
      op.part.rings_runs = true
    end
  end
  return #places
end

-- what is against putting it over the stored one, and what is stored; nothing if it is equal
local function against(new, stored)
  local def, rel, src = stored_text(stored)
  if def == new.def then
    return nil
  elseif new.revision and new.revision ~= stored.rev then
    return "revision", text(stored.rev)
  elseif new.src ~= src then
    return "source", src
  elseif new.rel < rel then
    return "release", text(rel)
  end
  return "", ""
end

local function replace(new, stored)
  if stored.v ~= op.args.v then
    return { "conflict", stored.rev, "version", text(stored.v) }
  end
  local what, there = against(new, stored)
  if not what then
    return { "already", stored.rev, "", "" }
  elseif what ~= "" then
    return { "conflict", stored.rev, what, there }
  end
  local next_due, last_due = stored.next, stored.last
  jobs.set_times(stored, false, false)
  writes.zrem(op.keys.spent, new.id)
  jobs.define(stored, new, stored.rev + 1)
  jobs.set_times(stored, next_due, last_due)
  return { "ok", stored.rev, "", "" }
end

register.write("put_jobs", "", function()
  local own, written, seen, answers, added, left = op.args.v, {}, {}, {}, 0, TAKEN_MAX

  local function add(new)
    if new.revision and new.revision ~= 0 then
      return { "conflict", 0, "gone", "" }
    end
    local rev, last = jobs.recall(new.id)
    jobs.add(new.id, new, rev + 1, false, last, false, own)
    if rev > 0 then
      left = left - take_runs_of(new.id, left)
    end
    added = added + 1
    return { "ok", rev + 1, "", "" }
  end

  for n, new in ipairs(op.args.puts) do
    local stored = jobs.read(new.id)
    answers[n] = stored and replace(new, stored) or add(new)
    if answers[n][1] == "ok" and not seen[new.id] then
      seen[new.id] = true
      written[#written + 1] = new.id
    end
  end
  if #written > 0 then
    versions.use(own)
    op.enter(own)
    feed.add({ type = "put", ids = written, added = added })
  end
  audit.add(answers)
  moves.give_entries()
  return answers
end)
