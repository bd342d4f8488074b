#!lua flags=allow-oom
-- Waiting runs end here, leased ones are asked to stop.  Of a job: all its live runs, in the order of their coming.
local ids, named = A.ids, {}
for _, id in ipairs(ids) do
  named[id] = true
end
if A.job then
  local mates = {}
  for _, place in ipairs(call("ZRANGE", live_key(A.job), 0, -1)) do
    local id = string.sub(place, 16)
    if not named[id] then
      mates[#mates + 1] = { tonumber(call("HGET", run_key(id), "n")), id }
    end
  end
  table.sort(mates, function(one, other) return one[1] < other[1] end)
  for _, mate in ipairs(mates) do
    ids[#ids + 1] = mate[2]
  end
end
local ends, answers = {}, {}
for n, id in ipairs(ids) do
  local run = read_run(id)
  local kind = "ok"
  if not run or not is_live(run) then
    kind = run and run.st == "cancelled" and "already" or "lost"
  elseif run.st == "leased" then
    kind = ask_to_stop(run, A.reason) and "ok" or "already"
  else
    ends[#ends + 1] = cancel_waiting(run, A.reason)
  end
  answers[n] = { kind, id }
end
tell_ends(ends)
return finished_call(answers)
