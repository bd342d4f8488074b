-- Moves of live runs into another version: the state stays; its stream entry is removed there and added here.
local moves = {}
local check, DEFAULT = writes.check, op.DEFAULT

function moves.move(run, to)
  local state, visible, owner, til, len, why = run.st, run.vis, run.own, run.til, run.len, run.why
  runs.step_out(run)
  run.v = to ~= DEFAULT and to or nil
  op.enter(to)
  if state == "leased" then
    run.own, run.til, run.len = owner, til, len
    writes.zadd(op.here.leases, run.id, til)
    op.came_leased[#op.came_leased + 1] = run
  else
    runs.stand(run, state, visible)
    run.why = why
  end
  runs.touch(run)
  if state == "held" then
    feed.add_arrived(run)
  end
end

-- no lease may last longer there than it was given for, and what was visible before is visible there
function moves.bring_clock(from, to)
  for _, field in ipairs({ "granted", "clock" }) do
    writes.set_count_in(to, field, math.max(writes.count_in(to, field), writes.count_in(from, field)))
  end
end

-- An entry more for each, of its new stream: those that are there are of the runs that wait.  An entry that was taken stays
-- taken, so this comes last, when all that is to be written is known.
function moves.give_entries()
  for _, run in ipairs(op.came_leased) do
    op.enter(run.v or DEFAULT)
    check(op.here.streams[run.pr], "stream")
    check(op.here.queues[run.pr], "zset")
  end
  for _, run in ipairs(op.came_leased) do
    op.enter(run.v or DEFAULT)
    op.part.coming[run.pr] = op.part.coming[run.pr] + 1
    run.ent = streams.take(run.pr, 1, run.own)[1]
  end
end

return moves
