-- Delete jobs, and end their waiting runs, in one write, at most `limit` runs: the answer names the jobs with more, and
-- they are noted in `unfinished`.
register.write("delete_jobs", "allow-oom", function()
  streams.promote()
  local args, deleted, answers, rest, left, seen = op.args, {}, {}, {}, op.args.limit, {}
  local upto, why = writes.count_of("seq"), args.reason ~= "" and args.reason or jobs.GONE

  local function end_runs_of(id)
    local looked, is_more = runs.end_waiting(id, upto, false, why, left)
    left = left - looked
    if is_more then
      rest[#rest + 1] = id
    end
  end

  for n, id in ipairs(args.ids) do
    local job = jobs.read(id)
    if not seen[id] then -- of a deleted one, too: what was left of it may not be noted
      seen[id] = true
      end_runs_of(id)
    end
    if job then
      jobs.drop(job)
      deleted[job.v] = deleted[job.v] or {}
      table.insert(deleted[job.v], id)
    end
    answers[n] = job and "ok" or "lost"
  end
  feed.add_gathered()
  for version, ids in pairs(deleted) do
    op.enter(version)
    feed.add({ type = "deleted", ids = ids })
  end
  audit.add(answers)
  return { answers, rest }
end)

-- Go on where deletes were cut off, and name where a move was: of these jobs, or of any if none is named.  What still waits of
-- deleted ones ends, of no more than `limit` runs.  Answers how many were looked at, whether there are more, and a move that
-- the caller is to go on with: {id, behind which place, into which version}.
register.write("finish", "allow-oom", function()
  streams.promote()
  local unfinished, looked, is_more, move, ids = op.keys.unfinished, 0, false, false, op.args.ids
  if #ids == 0 then
    ids = op.call("HRANDFIELD", unfinished, op.args.limit)
    is_more = op.call("HLEN", unfinished) > #ids
  end
  for _, id in ipairs(ids) do
    local left = jobs.unfinished(id)
    if not left then
      writes.hdel(unfinished, id)
    elseif left[3] then
      local count, has_more = runs.end_waiting(id, left[2], left[1], left[3], op.args.limit - looked)
      looked, is_more = looked + count, is_more or has_more
    else
      is_more, move = true, { id, left[1], left[2] }
    end
  end
  feed.add_gathered()
  return { looked, is_more, move }
end)

-- how many deleted or moved jobs there are whose runs are not all done
register.read("unfinished", function()
  return op.call("HLEN", op.keys.unfinished)
end)
