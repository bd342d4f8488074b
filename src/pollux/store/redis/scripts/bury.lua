#!lua flags=allow-oom
-- What was leased by a claim and cannot be read by its caller is dead, and says why: nothing of it stands in the way of
-- the others.  An item is {run, why}.  Of what somebody else wrote there only what can be ours is kept.
local KEPT = {
  st = true, job = true, due = true, vis = true, cause = true, key = true, pr = true, gated = true, att = true,
  loss = true, crash = true, fence = true, tok = true, own = true, til = true, len = true, ent = true, n = true, v = true,
  id = true,
}

local function cleanse(run)
  for field in pairs(run) do
    if not KEPT[field] then
      run[field] = nil
    end
  end
  run.cause = cause_of(run)
  bodies[run.id] = "{}"
end

promote()
for _, item in ipairs(A.items) do
  local run = read_run(item[1])
  if run and is_taken_by(run, A.token) then
    cleanse(run)
    run.failed, run.err = true, item[2]
    finish(run, "dead", now, false)
    add_end(run, idle_end(run, "dead", true, item[2]))
  end
end
tell_gathered()
return answer(true)
