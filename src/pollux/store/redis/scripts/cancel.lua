#!lua flags=allow-oom
-- Waiting runs end here, leased ones are asked to stop: those of `ids`, and behind them a part of a job's live runs, by
-- (due, id) after a place and not younger than `upto`.  Answers {kind, id, order of its coming} of each, and where the next
-- part begins.
promote()
local answers, said, next_after, upto = {}, {}, false, A.upto

local function cancel(id, run)
  if not run or not is_live(run) then
    return run and run.st == "cancelled" and "already" or "lost"
  elseif run.st == "leased" then
    return ask_to_stop(run, A.reason) and "ok" or "already"
  end
  add_end(run, cancel_waiting(run, A.reason))
  return "ok"
end

local function add(id, run)
  local order = run and run.n or 0
  local kind = cancel(id, run)
  answers[#answers + 1] = { kind, id, order }
  said[#said + 1] = kind .. " " .. id
end

local is_named = {}
for _, id in ipairs(A.ids) do
  is_named[id] = true
  add(id, read_run(id))
end
if A.job then
  upto = upto or count_of("seq")
  local from = A.after and "(" .. A.after or "-"
  local places = call("ZRANGEBYLEX", live_key(A.job), from, "+", "LIMIT", 0, A.limit)
  for _, place in ipairs(places) do
    local id = string.sub(place, 16)
    local run = read_run(id)
    if run and not is_named[id] and (run.n or 0) <= upto and not (A.waiting and run.st == "leased") then
      add(id, run)
    end
  end
  next_after = #places == A.limit and places[#places]
end
tell_gathered()
return answer_told({ answers, next_after, upto }, said)
