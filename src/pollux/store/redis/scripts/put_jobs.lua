#!lua
-- Add or replace definitions.  A put is {id, definition, release, source, enabled, once, revision or false}.
local written, answers, added = {}, {}, 0

local function put_job(put)
  local id, revision = put.id, put.revision
  local stored = read_job(id)
  if not stored then
    if revision and revision ~= 0 then
      return { "conflict", 0, "gone", "" }
    end
    local rev, last = recall_job(id)
    add_job(id, put, rev + 1, false, last, false)
    added = added + 1
    return { "ok", rev + 1, "", "" }
  end
  if stored.def == put.def then
    return { "already", stored.rev, "", "" }
  end
  if revision and revision ~= stored.rev then
    return { "conflict", stored.rev, "revision", text(stored.rev) }
  end
  if put.src ~= stored.src then
    return { "conflict", stored.rev, "source", stored.src }
  end
  if put.rel < stored.rel then
    return { "conflict", stored.rev, "release", text(stored.rel) }
  end
  local next_due, last_due = stored.next, stored.last
  move_job(id, stored, false, last_due)
  write_definition(id, put, stored.rev + 1)
  call("ZREM", SPENT, id)
  move_job(id, { next = false, last = last_due, on = put.on, once = put.once }, next_due, last_due)
  return { "ok", stored.rev + 1, "", "" }
end

local seen = {}
for n, put in ipairs(A.puts) do
  answers[n] = put_job(put)
  if answers[n][1] == "ok" and not seen[put.id] then
    seen[put.id] = true
    written[#written + 1] = put.id
  end
end
if #written > 0 then
  tell({ type = "put", ids = written, added = added })
end
return finished_call(answers)
