#!lua flags=allow-oom
-- What was leased by a claim and cannot be read by its caller is dead, and says why: nothing of it stands in the way of
-- the others.  An item is {run, why}.  Of what somebody else wrote there only what can be ours is kept.
local KINDS = {
  st = "string", job = "string", due = "number", vis = "number", cause = "string", key = "string", pr = "number",
  gated = "boolean", att = "number", loss = "number", crash = "number", fence = "number", tok = "string", own = "string",
  til = "number", len = "number", ent = "string", n = "number", v = "number", id = "string",
}
local is_cause = {}
for _, cause in ipairs(A.causes) do
  is_cause[cause] = true
end

local function cleanse(run)
  for field, value in pairs(run) do
    if type(value) ~= KINDS[field] then
      run[field] = nil
    end
  end
  run.cause = is_cause[run.cause] and run.cause or nil
  bodies[run.id] = "{}"
end

promote()
for _, item in ipairs(A.items) do
  local run = read_run(item[1])
  if run and run.st == "leased" and run.tok == A.token .. ":" .. text(run.fence) then
    cleanse(run)
    run.failed, run.err = true, item[2]
    finish(run, "dead", now, false)
    add_end(run, idle_end(run, "dead", true, item[2]))
  end
end
tell_gathered()
return answer(true)
