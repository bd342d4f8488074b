#!lua
-- Accept runs; `rows` as `admit` takes them.
promote()
local arrived, answers, has_accepted = {}, {}, false
local waiting = get_number("held") + call("ZCARD", LINE_1) + call("ZCARD", LINE_2) + call("ZCARD", LINE_3)
for n, row in ipairs(A.rows) do
  local kind, detail = "full", ""
  if waiting < A.ready_max or call("EXISTS", run_key(row[1])) == 1 then
    kind, detail = accept(row, arrived)
  end
  if kind == "ok" then
    waiting = waiting + 1
    has_accepted = true
  end
  answers[n] = { kind, detail }
end
tell_arrived(arrived)
if has_accepted then
  local written = {}
  write_notes(A.notes, written)
  tell_notes(written)
end
return finished_call(answers)
