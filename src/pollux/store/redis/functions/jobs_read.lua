-- Jobs as rows: by id, in the order of ids, in the order of due times; and what is remembered of deleted ones.
local call, text, pad = op.call, op.text, op.pad
local PLACE_MAX = 9007199254740991

register.read("get_jobs", function()
  local rows = {}
  for n, id in ipairs(op.args.ids) do
    rows[n] = jobs.row(id)
  end
  return rows
end)

-- those after an id; of a missing one its id alone
register.read("list_jobs", function()
  local after, rows = op.args.after, {}
  local ids = call("ZRANGEBYLEX", op.keys.jobs, after and "(" .. after or "-", "+", "LIMIT", 0, op.args.limit)
  for n, id in ipairs(ids) do
    rows[n] = jobs.row(id) or { id }
  end
  return rows
end)

-- by (next due, id), those after that pair and before that time; a missing one has no definition
register.read("due", function()
  local args, rows = op.args, {}
  local after = args.after and "(" .. pad(args.after[1]) .. args.after[2] or "-"
  local places = call("ZRANGEBYLEX", op.here.due, after, "(" .. pad(args.before), "LIMIT", 0, args.limit)
  for n, place in ipairs(places) do
    local id = string.sub(place, 16)
    local row = jobs.row(id) or { id, 0, false, false, false, "", args.v }
    row[3] = row[3] or (tonumber(string.sub(place, 1, 15)) or 1e14) - 1e14
    rows[n] = row
  end
  return rows
end)

-- deleted jobs in the order in which they went: {place, id, revision, last due or false}; of a value that is not of our
-- making neither revision nor time
register.read("get_tombs", function()
  local tombs, keys = {}, op.keys
  local found = call("ZRANGEBYSCORE", keys.tombs_order, "(" .. text(op.args.after), PLACE_MAX, "WITHSCORES", "LIMIT", 0,
    op.args.limit)
  for n = 1, #found, 2 do
    local rev, last = string.match(call("HGET", keys.tombs, found[n]) or "", "^(%d+):(%-?%d*)")
    tombs[#tombs + 1] = { math.ceil(found[n + 1]), found[n], tonumber(rev) or 0, tonumber(last) or false }
  end
  return tombs
end)
