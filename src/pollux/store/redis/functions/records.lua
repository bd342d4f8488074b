-- The audit log, notes and feed as rows; records that were dumped; removal of what is old.
local call, text = op.call, op.text
local check = writes.check

-- The oldest entries.  Those that the caller has read before come without their text; one that is not of our making comes
-- with an empty text, and all of its fields.
register.read_parts("feed", function()
  local known, items = {}, {}
  for _, id in ipairs(op.args.known) do
    known[text(id) .. "-0"] = true
  end
  for n, item in ipairs(call("XRANGE", op.here.feed, "-", "+", "COUNT", op.args.limit)) do
    local fields = item[2]
    if known[item[1]] then
      items[n] = { item[1] }
    elseif fields[1] == "ends" and fields[3] == "entry" then
      items[n] = { item[1], fields[4] }
    else
      items[n] = { item[1], "", table.concat(fields, " ") }
    end
  end
  return { text(op.now), op.bell_place(op.here.bell_feed), items }
end)

register.write("put_notes", "allow-oom", function()
  local written = {}
  local answers = notes.write(op.args.puts, written)
  notes.add_changed(written)
  audit.add(answers)
  return answers
end)

-- Notes whose key begins so, by key; those after one, a page at a time, and from where the next page goes on.
register.read("notes", function()
  local args, rows, next_after = op.args, {}, false
  local from = args.after and "(" .. args.after or "[" .. args.prefix
  local keys = call("ZRANGEBYLEX", op.keys.note_keys, from, "+", "LIMIT", 0, args.limit)
  for n, key in ipairs(keys) do
    if string.sub(key, 1, #args.prefix) ~= args.prefix then
      break
    end
    local note = notes.read(key)
    if note and (args.expired or not note.ends or note.ends > op.now) then
      rows[#rows + 1] = { key, note.value or "", note.rev or 0, note.ends }
    end
    if n == args.limit then
      next_after = key
    end
  end
  return { next_after, rows }
end)

-- append the lines of `audit`, and change nothing else
register.write("log", "allow-oom", function()
  audit.write(op.args.audit.lines)
  return true
end)

-- lines after a number, oldest first; or from the end, those before a number
register.read("read_log", function()
  local args, log, lines, found = op.args, op.keys.log, {}, nil
  if args.newest then
    found = call("XREVRANGE", log, args.after > 0 and "(" .. text(args.after) .. "-0" or "+", "-", "COUNT", args.limit)
  else
    found = call("XRANGE", log, "(" .. text(args.after) .. "-0", "+", "COUNT", args.limit)
  end
  for n, item in ipairs(found) do
    lines[n] = item[2][2]
  end
  return lines
end)

-- Write records where there are none of the same id; each item begins with its kind.
local load = {}

-- {"job", id, put, revision, next due, last due, memory, version}
function load.job(item)
  local _, id, new, rev, next_due, last_due, memory, version = unpack(item, 1, 8)
  if jobs.exists(id) then
    return false
  end
  jobs.recall(id)
  jobs.add(id, new, rev, next_due, last_due, memory, version)
  return true
end

-- {"live", row}; a lease is void by then
function load.live(item)
  local row = item[2]
  local key = row[2].key
  if runs.exists(row[1]) or (key and writes.field_of(op.keys.unique, key)) then
    return false
  end
  runs.admit_row(row)
  return true
end

-- {"history", row}
function load.history(item)
  local id, run, body = unpack(item[2], 1, 3)
  if runs.exists(id) then
    return false
  end
  run.id, run.pr, op.bodies[id] = id, run.pr or 2, body
  op.runs[id], run.pq = run, writes.next_seq()
  runs.add_to_history(run)
  return true
end

-- {"note", key, value, end, revision}
function load.note(item)
  local _, key, value, ends, rev = unpack(item, 1, 5)
  if writes.field_of(op.keys.notes, key) then
    return false
  end
  notes.set(key, value, ends, rev)
  return true
end

-- {"log", seq, line}
function load.log(item)
  op.last_line = op.last_line or audit.last_number()
  if item[2] <= op.last_line then
    return false
  end
  op.last_line = item[2]
  audit.restore(item[2], item[3])
  return true
end

-- {"term", number, version}
function load.term(item)
  local number, version = item[2], item[3]
  local stored = op.terms[version] or tonumber(call("HGET", op.keys_in(version).meta, "term") or 0)
  if number <= stored then
    return false
  end
  op.terms[version] = number
  return true
end

-- {"tomb", id, revision, last due}
function load.tomb(item)
  local _, id, rev, last_due = unpack(item, 1, 4)
  if jobs.exists(id) or writes.field_of(op.keys.tombs, id) then
    return false
  end
  jobs.remember({ id = id, rev = rev, last = last_due })
  return true
end

local function write_terms()
  for version, number in pairs(op.terms) do
    call("HSET", op.keys_in(version).meta, "term", text(number), "holder", "", "term_until", 0, "term_ttl", 0)
    if version ~= op.DEFAULT and not call("HGET", op.keys.versions, version) then
      call("HSET", op.keys.versions, version, "0")
    end
  end
end

register.write("load", "", function()
  streams.promote()
  op.terms, op.last_line = {}, nil
  local new, new_jobs, keys = {}, {}, {}
  for n, item in ipairs(op.args.items) do
    local kind = item[1]
    new[n] = load[kind](item)
    if new[n] and kind == "job" then
      new_jobs[item[8]] = new_jobs[item[8]] or {}
      table.insert(new_jobs[item[8]], item[2])
    elseif new[n] and kind == "live" and item[2][2].st == "held" then
      feed.add_arrived(item[2][2])
    elseif new[n] and kind == "note" then
      keys[#keys + 1] = item[2]
    end
  end
  for version, ids in pairs(new_jobs) do
    op.enter(version)
    feed.add({ type = "put", ids = ids, added = #ids })
  end
  feed.add_gathered()
  notes.add_changed(keys)
  op.writers[1] = {
    check = function()
      check(op.keys.log, "stream")
    end,
    write = write_terms,
  }
  return new
end)
