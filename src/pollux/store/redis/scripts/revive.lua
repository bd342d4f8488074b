#!lua flags=allow-oom
-- Dead letters run again.
promote()
local arrived, answers = {}, {}

local function revive(id)
  local run = read_run(id)
  if not run or run.st ~= "dead" then
    return { "lost", "" }
  end
  if not has_job(run.job) then
    return { "stale", "" }
  end
  local holder = run.key and call("HGET", UNIQUE, run.key)
  if holder then
    return { "conflict", holder }
  end
  unshelve(id)
  call("HDEL", run_key(id), "att", "loss", "crash", "deaths", "cancel", "prog", "pq")
  local fields = { "vis", now }
  if run.gated then
    fields = { "vis", now, "why", A.at_the_gate }
    arrived[#arrived + 1] = id
  end
  admit({ id, run.job, run.due, run.key, run.pr, run.gated and "held" or "ready", now, fields })
  return { "ok", "" }
end

for n, id in ipairs(A.ids) do
  answers[n] = revive(id)
end
tell_arrived(arrived)
return finished_call(answers)
