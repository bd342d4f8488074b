-- The indexes in which a run or a job has to be, and those in which it may be by mistake, for `check` and its repair.
local function line_of(run, pr)
  return key_of(run.v or DEFAULT, "queue:" .. text(pr))
end

local function class_of(run)
  if run.st == "dead" then
    return FINISHED_DEAD
  end
  return run.st == "done" and not run.failed and run.chg == false and FINISHED_UNCHANGED or FINISHED_PLAIN
end

-- {key, member, score} for every place; a score of false is not looked at
local function places_of(run)
  local by_due = pad(run.due) .. run.id
  if not is_live(run) then
    local by_end = pad(run.fin) .. pad_seq(run.pq) .. run.id
    return { { class_of(run), by_end, 0 }, { history_key(run.job, history_kind(run)), by_end, 0 } }
  end
  local places = { { LIVE, by_due, 0 }, { live_key(run.job), by_due, 0 } }
  if run.st == "ready" then
    places[3] = { line_of(run, run.pr), pad_seq(run.q) .. run.id, run.vis }
  elseif run.st == "held" then
    places[3] = { key_of(run.v or DEFAULT, "held"), by_due, 0 }
  else
    places[3] = { key_of(run.v or DEFAULT, "leases"), run.id, run.til }
  end
  return places
end

local function all_places(run)
  local by_due = pad(run.due) .. run.id
  local version = run.v or DEFAULT
  local places = { { LIVE, by_due }, { live_key(run.job), by_due }, { key_of(version, "held"), by_due },
    { key_of(version, "leases"), run.id } }
  if run.q then
    for pr = 1, 3 do
      places[#places + 1] = { line_of(run, pr), pad_seq(run.q) .. run.id }
    end
  end
  if run.fin and run.pq then
    local by_end = pad(run.fin) .. pad_seq(run.pq) .. run.id
    for _, key in ipairs({ FINISHED_PLAIN, FINISHED_UNCHANGED, FINISHED_DEAD, history_key(run.job, "history"),
      history_key(run.job, "failed"), history_key(run.job, "dead") }) do
      places[#places + 1] = { key, by_end }
    end
  end
  return places
end

-- does it say of itself all that is needed to know where it stands?  In its own words: `unpacked` has put in what lacks.
local function is_whole(run)
  local said = cmsgpack.unpack(call("HGET", run_key(run.id), "s"))
  if not is_live(run) then
    return type(said.fin) == "number" and tonumber(said.pq) ~= nil
  end
  return run.st == "held" or (run.st == "ready" and said.q and said.vis) or (run.st == "leased" and said.til) or false
end

local function is_place_of(run, key, member)
  for _, place in ipairs(places_of(run)) do
    if place[1] == key and place[2] == member then
      return true
    end
  end
  return false
end

local function short(key)
  return string.sub(key, #PREFIX + 1)
end

-- the run at `id`, if it can be read; else false, and why
local function found_run(id)
  local kind = call("TYPE", run_key(id)).ok
  if kind == "none" then
    return false, "there is no such run"
  end
  local run = kind == "hash" and read_run(id)
  if not run or not is_whole(run) then
    return false, "it cannot be read"
  end
  return run
end
