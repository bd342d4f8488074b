#!lua flags=allow-oom
-- Extend leases; items are {run, token, progress}.
local answers, has_renewed = {}, false
for n, item in ipairs(A.items) do
  local id, token, progress = unpack(item, 1, 3)
  local row = call("HMGET", run_key(id), "st", "tok", "cancel")
  if row[1] == "leased" and row[2] == token then
    call("HSET", run_key(id), "until", now + A.lease_ms, "len", A.lease_ms)
    call("ZADD", LEASES, now + A.lease_ms, id)
    if progress ~= "" then
      call("HSET", run_key(id), "prog", progress)
    end
    answers[n] = { "ok", row[3] or "" }
    has_renewed = true
  else
    answers[n] = { "lost", "" }
  end
end
if has_renewed then
  note_grant(false)
end
return finished_call(answers)
