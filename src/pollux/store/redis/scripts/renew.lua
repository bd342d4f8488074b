#!lua flags=allow-oom
-- Extend leases; items are {run, token, progress}.
local answers, has_renewed = {}, false
for n, item in ipairs(A.items) do
  local id, token, progress = unpack(item, 1, 3)
  local run = read_run(id)
  if run and run.st == "leased" and run.tok == token then
    run.til, run.len = now + A.lease_ms, A.lease_ms
    put("zset", LEASES, id, run.til)
    if progress ~= "" then
      run.prog = progress
    end
    touch(run)
    answers[n] = { "ok", run.cancel or "" }
    has_renewed = true
  else
    answers[n] = { "lost", "" }
  end
end
if has_renewed then
  note_grant(false)
end
return answer(answers)
