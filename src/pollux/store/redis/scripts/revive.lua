#!lua flags=allow-oom
-- Dead letters run again.
promote()
local answers = {}

local function revive(id)
  local run = read_run(id)
  if not run or run.st ~= "dead" then
    return { "lost", "" }
  end
  if not has_job(run.job) then
    return { "stale", "" }
  end
  local holder = run.key and field_of(UNIQUE, run.key)
  if holder then
    return { "conflict", holder }
  end
  unshelve(run)
  run.att, run.loss, run.crash, run.deaths, run.cancel, run.prog, run.pq = nil, nil, nil, nil, nil, nil, nil
  run.st, run.vis = run.gated and "held" or "ready", now
  if run.gated then
    run.why = A.at_the_gate
  end
  admit(run)
  if run.gated then
    add_arrived(run)
  end
  return { "ok", "" }
end

for n, id in ipairs(A.ids) do
  answers[n] = revive(id)
end
tell_gathered()
return answer_told(answers, in_words(answers))
