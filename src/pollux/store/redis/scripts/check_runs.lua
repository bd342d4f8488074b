#!lua flags=no-writes
-- Faults of these runs: {id, rule, words} for each.
local wrong = {}

local function say(id, rule, words)
  wrong[#wrong + 1] = { id, rule, words }
end

local function look(run)
  local wanted = {}
  for _, place in ipairs(places_of(run)) do
    wanted[place[1] .. "\n" .. place[2]] = true
    local score = call("ZSCORE", place[1], place[2])
    if not score then
      say(run.id, "places", "is " .. run.st .. ", but not in " .. short(place[1]))
    elseif tonumber(score) ~= place[3] then
      say(run.id, "places", "stands at another time in " .. short(place[1]))
    end
  end
  for _, place in ipairs(all_places(run)) do
    if not wanted[place[1] .. "\n" .. place[2]] and call("ZSCORE", place[1], place[2]) then
      say(run.id, "places", "is " .. run.st .. ", but also in " .. short(place[1]))
    end
  end
  if is_live(run) and run.key and call("HGET", UNIQUE, run.key) ~= run.id then
    say(run.id, "places", "does not hold its key " .. run.key)
  end
  if run.st == "leased" and (not run.tok or run.tok == "") then
    say(run.id, "leases", "has no token")
  end
  local version, left = version_of(run.job), unfinished(run.job)
  if left then
    return -- the leader puts it in order, if nobody else does
  end
  if (run.st == "ready" or run.st == "held") and not version then
    say(run.id, "orphans", "waits for job " .. run.job)
  elseif is_live(run) and version and version ~= (run.v or DEFAULT) then
    say(run.id, "versions", "is in version " .. text(run.v or DEFAULT) .. ", its job in " .. text(version))
  end
end

for _, id in ipairs(A.ids) do
  local run, why = found_run(id)
  if run then
    look(run)
  elseif call("EXISTS", run_key(id)) == 1 then
    say(id, "records", why)
  end
end
return answer(wrong)
