-- Moves of live runs into another version: the state stays; its stream entry is removed there and added here.
local came_leased = {} -- they take their entries last, when all that is to be written is known

local function move_run(run, to)
  local state, visible, owner, til, len, why = run.st, run.vis, run.own, run.til, run.len, run.why
  step_out(run)
  run.v = to ~= DEFAULT and to or nil
  enter(to)
  if state == "leased" then
    run.own, run.til, run.len = owner, til, len
    put("zset", LEASES, run.id, til)
    came_leased[#came_leased + 1] = run
  else
    stand(run, state, visible)
    run.why = why
  end
  touch(run)
  if state == "held" then
    add_arrived(run)
  end
end

-- no lease may last longer there than it was given for, and what was visible before is visible there
local function bring_clock(from, to)
  for _, field in ipairs({ "granted", "clock" }) do
    set_count_in(to, field, math.max(count_in(to, field), count_in(from, field)))
  end
end

-- an entry more for each: those that are there are of the runs that wait
local function give_entries()
  for _, run in ipairs(came_leased) do -- what one took would stay taken if another were refused
    enter(run.v or DEFAULT)
    check(STREAM[run.pr], "stream")
    check(QUEUE[run.pr], "zset")
  end
  for _, run in ipairs(came_leased) do
    enter(run.v or DEFAULT)
    coming[run.pr] = coming[run.pr] + 1
    run.ent = take_entries(run.pr, 1, run.own)[1]
  end
end
