#!lua
-- Accept runs; `rows` as `admit_row` takes them.  Answers true if all were accepted.
promote()
local answers, accepted, waits = {}, 0, {}

-- how many wait in a version, ready or held
local function waiting(version)
  if not waits[version] then
    local count = call("ZCARD", key_of(version, "held"))
    for pr = 1, 3 do
      count = count + call("ZCARD", key_of(version, "line:" .. pr))
    end
    waits[version] = count
  end
  return waits[version]
end

local ids = {}
for n, row in ipairs(A.rows) do
  ids[n] = row[1]
end
expect_new(ids)
for n, row in ipairs(A.rows) do
  local kind, detail, version = "full", "", version_of(row[2].job) or OWN
  if waiting(version) < A.ready_max or has_run(row[1]) then
    kind, detail = accept(row)
  end
  if kind == "ok" then
    waits[version] = waits[version] + 1
    accepted = accepted + 1
  end
  answers[n] = { kind, detail }
end
tell_gathered()
if accepted > 0 then
  local written = {}
  write_notes(A.notes, written)
  tell_notes(written)
end
return answer_told(accepted == #A.rows or answers, in_words(answers))
