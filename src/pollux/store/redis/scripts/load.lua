#!lua
-- Write records where there are none of the same id; each item begins with its kind.
promote()
local load = {}
local lines, last_line, terms, risen = {}, false, {}, {}

-- {"job", id, put, revision, next due, last due, memory, version}
function load.job(item)
  local _, id, put, rev, next_due, last_due, memory, version = unpack(item, 1, 8)
  if has_job(id) then
    return false
  end
  recall_job(id)
  add_job(id, put, rev, next_due, last_due, memory, version)
  return true
end

-- {"live", row}; a lease is void by then
function load.live(item)
  local row = item[2]
  local key = row[2].key
  if has_run(row[1]) or (key and field_of(UNIQUE, key)) then
    return false
  end
  admit_row(row)
  return true
end

-- {"history", row, is unchanged}
function load.history(item)
  local id, run, body = unpack(item[2], 1, 3)
  if has_run(id) then
    return false
  end
  run.id, run.pr, bodies[id] = id, run.pr or 2, body
  runs[id] = run
  shelve(run, item[3])
  return true
end

-- {"note", key, value, end, revision}
function load.note(item)
  local _, key, value, ends, rev = unpack(item, 1, 5)
  if field_of(NOTES, key) then
    return false
  end
  set_note(key, value, ends, rev)
  return true
end

-- {"log", seq, line}
function load.log(item)
  if not last_line then
    local last = call("XREVRANGE", LOG, "+", "-", "COUNT", 1)[1]
    last_line = last and tonumber(string.match(last[1], "^%d+")) or 0
  end
  if item[2] <= last_line then
    return false
  end
  last_line = item[2]
  lines[#lines + 1] = item
  return true
end

-- {"term", number, version}
function load.term(item)
  local number, version = item[2], item[3]
  terms[version] = terms[version] or tonumber(call("HGET", key_of(version, "meta"), "term") or 0)
  if number <= terms[version] then
    return false
  end
  terms[version], risen[version] = number, true
  return true
end

-- {"tomb", id, revision, last due}
function load.tomb(item)
  local _, id, rev, last_due = unpack(item, 1, 4)
  if has_job(id) or field_of(TOMBS, id) then
    return false
  end
  remember_job({ id = id, rev = rev, last = last_due })
  return true
end

local new, new_jobs, keys = {}, {}, {}
for n, item in ipairs(A.items) do
  new[n] = load[item[1]](item)
  if new[n] and item[1] == "job" then
    local version = item[8]
    new_jobs[version] = new_jobs[version] or {}
    table.insert(new_jobs[version], item[2])
  elseif new[n] and item[1] == "live" and item[2][2].st == "held" then
    add_arrived(item[2][2])
  elseif new[n] and item[1] == "note" then
    keys[#keys + 1] = item[2]
  end
end
for version, ids in pairs(new_jobs) do
  enter(version)
  tell({ type = "put", ids = ids, added = #ids })
end
tell_gathered()
tell_notes(keys)
writers[#writers + 1] = {
  check = function()
    check(LOG, "stream")
  end,
  write = function()
    for _, item in ipairs(lines) do
      call("XADD", LOG, text(item[2]) .. "-0", "line", item[3])
    end
    for version in pairs(risen) do
      local meta = key_of(version, "meta")
      call("HSET", meta, "term", text(terms[version]), "holder", "", "term_until", 0, "term_ttl", 0)
      if version ~= DEFAULT and not call("HGET", VERSIONS, version) then
        call("HSET", VERSIONS, version, "0")
      end
    end
  end,
}
return answer(new)
