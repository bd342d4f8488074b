#!lua
-- Accept runs; `rows` as `admit_row` takes them.  Answers true if all were accepted.
promote()
local arrived, answers, accepted = {}, {}, 0
local waiting = call("ZCARD", HELD) + call("ZCARD", LINE_1) + call("ZCARD", LINE_2) + call("ZCARD", LINE_3)
local ids = {}
for n, row in ipairs(A.rows) do
  ids[n] = row[1]
end
expect_new(ids)
for n, row in ipairs(A.rows) do
  local kind, detail = "full", ""
  if waiting < A.ready_max or has_run(row[1]) then
    kind, detail = accept(row, arrived)
  end
  if kind == "ok" then
    waiting = waiting + 1
    accepted = accepted + 1
  end
  answers[n] = { kind, detail }
end
tell_arrived(arrived)
if accepted > 0 then
  local written = {}
  write_notes(A.notes, written)
  tell_notes(written)
end
return answer(accepted == #A.rows or answers)
