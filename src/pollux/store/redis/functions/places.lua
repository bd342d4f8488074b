-- The indexes in which a run or a job has to be, and those in which it may be by mistake, for `check` and its repair.
local places = {}
local call, pad_seq, DEFAULT = op.call, op.pad_seq, op.DEFAULT

-- {key, member, score} for every place
function places.of(run)
  if not runs.is_live(run) then
    local by_end = runs.by_end(run)
    return { { runs.class_key(run), by_end, 0 }, { runs.history_key(run.job, runs.history_kind(run)), by_end, 0 } }
  end
  local by_due, keys = runs.by_due(run), op.keys_in(run.v or DEFAULT)
  local found = { { op.keys.live, by_due, 0 }, { runs.live_key(run.job), by_due, 0 } }
  if run.st == "ready" then
    found[3] = { keys.queues[run.pr], pad_seq(run.q) .. run.id, run.vis }
  elseif run.st == "held" then
    found[3] = { keys.held, by_due, 0 }
  else
    found[3] = { keys.leases, run.id, run.til }
  end
  return found
end

-- {key, member} for every place in which it could be
function places.all(run)
  local by_due, keys = runs.by_due(run), op.keys_in(run.v or DEFAULT)
  local found = { { op.keys.live, by_due }, { runs.live_key(run.job), by_due }, { keys.held, by_due }, { keys.leases, run.id } }
  if run.q then
    for pr = 1, 3 do
      found[#found + 1] = { keys.queues[pr], pad_seq(run.q) .. run.id }
    end
  end
  if run.fin and run.pq then
    local by_end = runs.by_end(run)
    for _, key in ipairs({ op.keys.finished_plain, op.keys.finished_unchanged, op.keys.finished_dead,
      runs.history_key(run.job, "history"), runs.history_key(run.job, "failed"), runs.history_key(run.job, "dead") }) do
      found[#found + 1] = { key, by_end }
    end
  end
  return found
end

-- Whether the stored state has all the fields that its indexes need: `runs.unpacked` adds what lacks.
local function is_whole(run)
  local stored = cmsgpack.unpack(call("HGET", op.keys.run .. run.id, "s"))
  if not runs.is_live(run) then
    return type(stored.fin) == "number" and type(stored.pq) == "number"
  end
  return run.st == "held" or (run.st == "ready" and stored.q and stored.vis) or (run.st == "leased" and stored.til) or false
end

function places.is_of(run, key, member)
  for _, place in ipairs(places.of(run)) do
    if place[1] == key and place[2] == member then
      return true
    end
  end
  return false
end

function places.short(key)
  return string.sub(key, #op.keys.prefix + 1)
end

-- the run at `id`, if it can be read; else false, and why
function places.run_at(id)
  local kind = call("TYPE", op.keys.run .. id).ok
  if kind == "none" then
    return false, "there is no such run"
  end
  local run = kind == "hash" and runs.read(id)
  if not run or not is_whole(run) then
    return false, "it cannot be read"
  end
  return run
end

return places
