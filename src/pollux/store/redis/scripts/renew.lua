#!lua flags=allow-oom
-- Extend leases; items are {run, token, progress}.
local answers, renewed = {}, {}
for n, item in ipairs(A.items) do
  local id, token, progress = unpack(item, 1, 3)
  local run = read_run(id)
  if run and run.st == "leased" and run.tok == token then
    run.til, run.len = now + A.lease_ms, A.lease_ms
    put("zset", key_of(run.v or DEFAULT, "leases"), id, run.til)
    if progress ~= "" then
      run.prog = progress
    end
    touch(run)
    answers[n] = { "ok", run.cancel or "" }
    renewed[run.v or DEFAULT] = true
  else
    answers[n] = { "lost", "" }
  end
end
for version in pairs(renewed) do
  enter(version)
  note_grant(false)
end
return answer(answers)
