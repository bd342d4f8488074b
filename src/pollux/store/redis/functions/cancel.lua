-- Waiting runs end here, leased ones are asked to stop: those of `ids`, and behind them a part of a job's live runs, by
-- (due, id) after a place, not younger than `upto`.  Answers {kind, id, order of its coming} of each, where the next part
-- begins, and `upto`.
local call = op.call

local function cancel(id, run)
  if not run or not runs.is_live(run) then
    return run and run.st == "cancelled" and "already" or "lost"
  elseif run.st == "leased" then
    return runs.ask_to_stop(run, op.args.reason) and "ok" or "already"
  end
  feed.add_end(run, runs.cancel_waiting(run, op.args.reason))
  return "ok"
end

-- How many live runs of a job come after a place and are still to be cancelled: neither named nor with a request already.  Only
-- leased runs have one, and there are no more of them than seats.
local function count_rest(live, after, is_named)
  local rank = call("ZRANK", live, after)
  local count = call("ZCARD", live) - rank - 1

  local function leave_out(run)
    local at = run and call("ZRANK", live, runs.by_due(run))
    count = at and at > rank and count - 1 or count
  end

  for id in pairs(is_named) do
    leave_out(runs.read(id))
  end
  for version in pairs(versions.known()) do
    for _, id in ipairs(call("ZRANGE", op.keys_in(version).leases, 0, -1)) do
      local run = not is_named[id] and runs.read(id)
      leave_out(run and run.cancel and run)
    end
  end
  return count
end

register.write("cancel", "allow-oom", function()
  streams.promote()
  local args, answers, done, rest, is_named = op.args, {}, 0, 0, {}
  local next_after, upto = false, args.upto

  local function add(id, run)
    local order = run and run.n or 0
    local kind = cancel(id, run)
    done = done + (kind == "ok" and 1 or 0)
    answers[#answers + 1] = { kind, id, order }
  end

  for _, id in ipairs(args.ids) do
    is_named[id] = true
    add(id, runs.read(id))
  end
  if args.job then
    upto = upto or writes.count_of("seq")
    local live = runs.live_key(args.job)
    local places = call("ZRANGEBYLEX", live, args.after and "(" .. args.after or "-", "+", "LIMIT", 0, args.limit)
    for _, place in ipairs(places) do
      local id = runs.id_by_due(place)
      local run = runs.read(id)
      if run and not is_named[id] and (run.n or 0) <= upto then
        add(id, run)
      end
    end
    next_after = #places == args.limit and places[#places]
    rest = next_after and done > 0 and args.audit and count_rest(live, next_after, is_named) or 0
  end
  feed.add_gathered()
  if done > 0 then -- the lines go with the first part that does anything, and count those of the next ones
    audit.add(args.audit and args.audit.each and answers or done + rest)
  end
  return { answers, next_after, upto, done > 0 }
end)

-- Dead letters run again.
local function revive(id)
  local run = runs.read(id)
  if not run or run.st ~= "dead" then
    return { "lost", "" }
  end
  if not jobs.exists(run.job) then
    return { "stale", "" }
  end
  local holder = run.key and writes.field_of(op.keys.unique, run.key)
  if holder then
    return { "conflict", holder }
  end
  runs.drop_from_history(run)
  run.att, run.loss, run.crash, run.deaths, run.cancel, run.prog, run.pq = nil, nil, nil, nil, nil, nil, nil
  run.st, run.vis = run.gated and "held" or "ready", op.now
  if run.gated then
    run.why = op.args.at_the_gate
  end
  runs.admit(run)
  if run.gated then
    feed.add_arrived(run)
  end
  return { "ok", "" }
end

register.write("revive", "allow-oom", function()
  streams.promote()
  local answers = {}
  for n, id in ipairs(op.args.ids) do
    answers[n] = revive(id)
  end
  feed.add_gathered()
  audit.add(answers)
  return answers
end)
