#!lua
-- Write records where there are none of the same id; each item begins with its kind.
promote()
local load = {}

-- {"job", id, put, revision, next due, last due, memory}
function load.job(item)
  local _, id, put, rev, next_due, last_due, memory = unpack(item, 1, 7)
  if has_job(id) then
    return false
  end
  recall_job(id)
  add_job(id, put, rev, next_due, last_due, memory)
  return true
end

-- {"live", row}; a lease is void by then
function load.live(item)
  local row = item[2]
  if call("EXISTS", run_key(row[1])) == 1 or (row[4] and call("HEXISTS", UNIQUE, row[4]) == 1) then
    return false
  end
  admit(row)
  return true
end

-- {"past", id, job, state, finished, is unchanged, fields}
function load.past(item)
  local _, id, job, state, finished, is_unchanged, fields = unpack(item, 1, 7)
  if call("EXISTS", run_key(id)) == 1 then
    return false
  end
  call("HSET", run_key(id), "pq", shelve(id, job, state, finished, is_unchanged), unpack(fields))
  return true
end

-- {"note", key, value, end, revision}
function load.note(item)
  local _, key, value, ends, rev = unpack(item, 1, 5)
  if call("HEXISTS", NOTES, key) == 1 then
    return false
  end
  set_note(key, value, ends, rev)
  return true
end

-- {"log", seq, line}
function load.log(item)
  local last = call("XREVRANGE", LOG, "+", "-", "COUNT", 1)[1]
  if last and item[2] <= tonumber(string.match(last[1], "^%d+")) then
    return false
  end
  call("XADD", LOG, text(item[2]) .. "-0", "line", item[3])
  return true
end

-- {"term", number}
function load.term(item)
  if item[2] <= get_number("term") then
    return false
  end
  call("HSET", META, "term", item[2], "holder", "", "term_until", 0, "term_ttl", 0)
  return true
end

local new, jobs, held, keys = {}, {}, {}, {}
for n, item in ipairs(A.items) do
  new[n] = load[item[1]](item)
  if new[n] and item[1] == "job" then
    jobs[#jobs + 1] = item[2]
  elseif new[n] and item[1] == "live" and item[2][6] == "held" then
    held[#held + 1] = item[2][1]
  elseif new[n] and item[1] == "note" then
    keys[#keys + 1] = item[2]
  end
end
if #jobs > 0 then
  tell({ type = "put", ids = jobs, added = #jobs })
end
tell_arrived(held)
tell_notes(keys)
return finished_call(new)
