-- Runs as they go to the caller, and how many there are.
local call, text, pad_seq, DEFAULT = op.call, op.text, op.pad_seq, op.DEFAULT

-- id, state, body, and again
register.read_parts("get_runs", function()
  return runs.add_parts({}, op.args.ids)
end)

local function live_places(args)
  local index = args.is_held and op.here.held or (args.job and runs.live_key(args.job) or op.keys.live)
  local from = args.after and "(" .. op.pad(args.after[1]) .. args.after[2] or "-"
  local found = {}
  for n, place in ipairs(call("ZRANGEBYLEX", index, from, "+", "LIMIT", 0, args.limit)) do
    found[n] = { place, runs.id_by_due(place) }
  end
  return found
end

local function finished_places(args)
  local found, keys, is_newest = {}, op.keys, args.kind == "newest"
  local histories = { keys.finished_plain, keys.finished_unchanged, keys.finished_dead }
  for n, kind in ipairs(args.job and { "history", "failed", "dead" } or {}) do
    histories[n] = runs.history_key(args.job, kind)
  end
  for _, history in ipairs(histories) do
    local places
    if is_newest then
      places = call("ZREVRANGEBYLEX", history, args.after and "(" .. args.after or "+", "-", "LIMIT", 0, args.limit)
    else
      places = call("ZRANGEBYLEX", history, args.after and "[" .. args.after or "-", "+", "LIMIT", 0, args.limit + 1)
    end
    for _, place in ipairs(places) do
      found[#found + 1] = { string.sub(place, 1, 29), runs.id_by_end(place) }
    end
  end
  table.sort(found, function(one, other)
    if is_newest then
      return one[1] > other[1]
    end
    return one[1] < other[1]
  end)
  return found
end

-- Their places, packed, and the runs: live ones by (due, id) after a place, or finished ones below a place (newest first) or
-- above it.
register.read_parts("list_runs", function()
  local args, ids, places = op.args, {}, {}
  for _, each in ipairs(args.kind == "live" and live_places(args) or finished_places(args)) do
    if #ids == args.limit then
      break
    end
    if args.kind ~= "oldest" or each[1] ~= args.after then
      places[#places + 1] = each[1]
      ids[#ids + 1] = each[2]
    end
  end
  return runs.add_parts({ cmsgpack.pack(places) }, ids)
end)

register.read("counts", function()
  return versions.counts(not op.args.all_versions and op.args.v)
end)

-- {visible by now, earliest visible time or false} of each priority, of our version; `before`: of those that are visible
-- only what is before that run
register.read("lines", function()
  local before, now, own, found = op.args.before, op.now, op.args.v, {}
  local mark = before ~= "" and runs.read(before) or nil
  local function ready_in(queue, pr) -- our queue and a mark of another version are ordered by time alone
    if before == "" or (mark and mark.st == "ready" and pr < mark.pr) then
      return call("ZCOUNT", queue, "-inf", now)
    end
    if not mark or mark.st ~= "ready" or pr > mark.pr then
      return 0
    end
    local rank = own == (mark.v or DEFAULT) and call("ZRANK", queue, pad_seq(mark.q) .. mark.id)
    if rank and mark.vis <= now then
      return rank
    end
    return call("ZCOUNT", queue, "-inf", mark.vis <= now and "(" .. text(mark.vis) or now)
  end
  for pr = 1, 3 do
    local queue = op.here.queues[pr]
    local head = call("ZRANGE", queue, 0, 0, "WITHSCORES")
    found[pr] = { ready_in(queue, pr), head[2] and tonumber(head[2]) or false }
  end
  return found
end)
