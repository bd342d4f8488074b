-- Remove finished runs, ended once-jobs and old audit lines, no more than `limit` of them together.  Answers how many went.
local call, text, pad, zrem = op.call, op.text, op.pad, writes.zrem
local LOOK_MAX = 1000 -- once-jobs that are looked at in one call

-- it ended with its last run; if no run taught the leader anything, or its memory cannot be read, when it was due
local function has_ended(id, job, before)
  local last_end = jobs.memory(id).last_end_ms
  local ended = type(last_end) == "number" and last_end or job.last
  if not ended or ended >= before or call("EXISTS", runs.live_key(id)) == 1
    or call("EXISTS", runs.history_key(id, "dead")) == 1 then
    return false
  end
  for _, kind in ipairs({ "history", "failed" }) do
    local newest = call("ZREVRANGE", runs.history_key(id, kind), 0, 0)[1]
    if newest and string.sub(newest, 1, 15) >= pad(before) then
      return false
    end
  end
  return true
end

register.write("prune", "allow-oom", function()
  local args, keys, gone = op.args, op.keys, 0

  local function left()
    return math.max(0, args.limit - gone)
  end

  -- places without a run are removed and not counted
  local function forget_at(history, places, count)
    for n = 1, math.min(#places, count) do
      local run = runs.read(runs.id_by_end(places[n]))
      if run and not runs.is_live(run) then
        runs.forget(run)
        gone = gone + 1
      else
        zrem(history, places[n])
      end
    end
  end

  local function drop_older(histories, before)
    local places, history_of = {}, {}
    for _, history in ipairs(histories) do
      for _, place in ipairs(call("ZRANGEBYLEX", writes.flush(history), "-", "(" .. pad(before), "LIMIT", 0, left())) do
        places[#places + 1] = place
        history_of[place] = history
      end
    end
    table.sort(places)
    for n = 1, math.min(#places, left()) do
      forget_at(history_of[places[n]], { places[n] }, 1)
    end
  end

  local function drop_beyond(keep)
    local found = call("ZRANGEBYSCORE", keys.counters, "(" .. text(keep), "+inf", "WITHSCORES", "LIMIT", 0, left())
    for n = 1, #found, 2 do
      local name, failed = found[n], string.match(found[n], "^failed (.*)$")
      local history = failed and runs.history_key(failed, "failed") or runs.history_key(name, "history")
      local excess = math.min(left(), tonumber(found[n + 1]) + (op.counter_changes[name] or 0) - keep)
      local places = excess > 0 and call("ZRANGE", writes.flush(history), 0, excess - 1) or {}
      if excess > 0 and #places == 0 then -- the counter is wrong: there is none
        zrem(keys.counters, name)
      end
      forget_at(history, places, left())
    end
  end

  local function drop_once(before)
    for _, id in ipairs(call("ZRANGEBYSCORE", keys.spent, "-inf", "(" .. text(before), "LIMIT", 0, LOOK_MAX)) do
      local job = jobs.read(id)
      if job and left() > 0 and has_ended(id, job, before) then
        jobs.drop(job)
        gone = gone + 1
      end
    end
  end

  local function drop_lines(keep)
    local there = call("XLEN", keys.log)
    local beyond = math.min(left(), there - math.max(1, keep))
    if beyond > 0 then
      op.writers[1] = {
        check = function() end, -- it was asked how long it is
        write = function()
          call("XTRIM", keys.log, "MAXLEN", "=", there - beyond)
        end,
      }
      gone = gone + beyond
    end
  end

  for _, id in ipairs(args.ids) do
    local run = runs.read(id)
    if run and not runs.is_live(run) and left() > 0 then
      runs.forget(run)
      gone = gone + 1
    end
  end
  if args.unchanged_before then
    drop_older({ keys.finished_unchanged }, args.unchanged_before)
  end
  if args.finished_before then
    drop_older({ keys.finished_plain, keys.finished_unchanged }, args.finished_before)
  end
  if args.keep_per_job then
    drop_beyond(args.keep_per_job)
  end
  if args.once_before then
    drop_once(args.once_before)
  end
  if args.dead_before then
    drop_older({ keys.finished_dead }, args.dead_before)
  end
  if args.dead_max then
    local excess = math.min(left(), call("ZCARD", writes.flush(keys.finished_dead)) - args.dead_max)
    if excess > 0 then
      forget_at(keys.finished_dead, call("ZRANGE", keys.finished_dead, 0, excess - 1), excess)
    end
  end
  if args.log_max then
    drop_lines(args.log_max)
  end
  audit.add(gone)
  return gone
end)
