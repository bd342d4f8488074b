#!lua flags=allow-oom
-- Waiting runs end here, leased ones are asked to stop: those of `ids`, and behind them a part of a job's live runs, by
-- (due, id) after a place, up to another and not younger than `upto`.  Answers {kind, id, order of its coming} of each, where
-- the next part begins, and with lines how many there are behind it.
promote()
local answers, said, next_after, upto, behind = {}, {}, false, A.upto, 0

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

-- Runs end while lines are made.  At last it is enough that these tell of all that is done: they may tell of more.
local function is_covered()
  local is_told, does_any = {}, false
  for words in string.gmatch(A.told.said, "[^\n]+") do
    is_told[words] = true
  end
  for n, row in ipairs(answers) do
    if row[1] == "ok" and not is_told[said[n]] then
      return false
    end
    does_any = does_any or row[1] == "ok"
  end
  return does_any
end

local is_named = {}
for _, id in ipairs(A.ids) do
  local run = read_run(id)
  if run and is_live(run) and run.job == A.job and not is_named[id] then
    behind = behind - 1 -- it is found again where it stands
  end
  is_named[id] = true
  add(id, run)
end
if A.job then
  upto = upto or count_of("seq")
  local from = A.after and "(" .. A.after or "-"
  local last = A.to and "[" .. A.to or "+"
  local places = call("ZRANGEBYLEX", live_key(A.job), from, last, "LIMIT", 0, A.limit)
  for _, place in ipairs(places) do
    local id = string.sub(place, 16)
    local run = read_run(id)
    behind = behind + (is_named[id] and 1 or 0)
    if run and not is_named[id] and (run.n or 0) <= upto then
      add(id, run)
    end
  end
  next_after = #places == A.limit and places[#places] or A.to
  behind = A.told and next_after and behind + call("ZLEXCOUNT", live_key(A.job), "(" .. next_after, "+") or 0
end
tell_gathered()
if A.told and A.told.is_late and is_covered() then
  said = { A.told.said }
end
return answer_told({ answers, next_after, upto, behind }, said)
