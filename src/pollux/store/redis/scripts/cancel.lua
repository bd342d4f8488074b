#!lua flags=allow-oom
-- Waiting runs end here, leased ones are asked to stop: those of `ids`, or a part of a job's live runs, by (due, id) after
-- a place and not younger than `upto`.  Answers {kind, id, order of its coming}, and where the next part begins.
promote()
local ids, next_after, upto = A.ids, false, A.upto or false
if A.job then
  upto = upto or count_of("seq")
  local from = A.after and "(" .. A.after or "-"
  local places = call("ZRANGEBYLEX", live_key(A.job), from, "+", "LIMIT", 0, A.limit)
  for n, place in ipairs(places) do
    ids[n] = string.sub(place, 16)
  end
  next_after = #places == A.limit and places[#places]
end
local answers = {}

local function cancel(id)
  local run = read_run(id)
  local order = run and run.n or 0
  if not run or not is_live(run) then
    return { run and run.st == "cancelled" and "already" or "lost", id, order }
  elseif run.st == "leased" then
    return { ask_to_stop(run, A.reason) and "ok" or "already", id, order }
  end
  add_end(run, cancel_waiting(run, A.reason))
  return { "ok", id, order }
end

for _, id in ipairs(ids) do
  local run = A.job and read_run(id)
  local is_meant = not A.job or (run and (run.n or 0) <= upto and not (A.waiting and run.st == "leased"))
  if is_meant then
    answers[#answers + 1] = cancel(id)
  end
end
tell_gathered()
return answer({ answers, next_after, upto })
