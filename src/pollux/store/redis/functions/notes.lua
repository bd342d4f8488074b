-- Notes: a packed value each in one hash; `notes:keys` orders the keys, `notes:ends` their expiry.
local notes = {}
local call, text = op.call, op.text
local zadd, hset, zrem, hdel = writes.zadd, writes.hset, writes.zrem, writes.hdel
local count_of, set_count = writes.count_of, writes.set_count
local SWEPT_MAX = 1000 -- expired notes that one operation removes

local function mark_stop(key)
  if string.sub(key, 1, 5) == "stop:" or string.sub(key, 1, 8) == "setting:" then
    set_count("stops", count_of("stops") + 1)
  end
end

function notes.read(key)
  local packed = writes.field_of(op.keys.notes, key)
  if not packed then
    return nil
  end
  local rev, ends, value = string.match(packed, "^(%d+):(%-?%d*):(.*)$")
  return { rev = tonumber(rev), ends = tonumber(ends) or false, value = value }
end

-- revisions come from one count, so that a note made anew is never taken for the old one
function notes.set(key, value, ends, rev)
  local count = math.max(count_of("notes") + 1, rev)
  set_count("notes", count)
  hset(op.keys.notes, key, text(rev > 0 and rev or count) .. ":" .. (ends and text(ends) or "") .. ":" .. value)
  zadd(op.keys.note_keys, key, "0")
  if ends then
    zadd(op.keys.note_ends, key, ends)
  else
    zrem(op.keys.note_ends, key)
  end
  mark_stop(key)
end

local function drop_note(key)
  hdel(op.keys.notes, key)
  zrem(op.keys.note_keys, key)
  zrem(op.keys.note_ends, key)
  mark_stop(key)
end

local function drop_expired()
  if op.has_swept then
    return
  end
  for _, key in ipairs(call("ZRANGEBYSCORE", op.keys.note_ends, "-inf", op.now, "LIMIT", 0, SWEPT_MAX)) do
    drop_note(key)
  end
  op.has_swept = true
end

-- would it change nothing?
local function is_same(stored, value, ends)
  if not value or not stored then
    return not value and not stored
  end
  return stored.value == value and stored.ends == ends
end

-- puts are {key, value or false, revision or false, end or false}; the keys written are added to `written`
function notes.write(puts, written)
  local answers = {}
  if #puts == 0 then
    return answers
  end
  drop_expired()
  for n, each in ipairs(puts) do
    local key, value, revision, ends = unpack(each, 1, 4)
    local stored = notes.read(key)
    if stored and stored.ends and stored.ends <= op.now then
      stored = nil
    end
    if revision and revision ~= (stored and stored.rev or 0) then
      answers[n] = "conflict"
    elseif not revision and is_same(stored, value, ends) then
      answers[n] = "already"
    else
      answers[n] = "ok"
      if value then
        notes.set(key, value, ends, 0)
      elseif stored then
        drop_note(key)
      end
      if (value or stored) and not written[key] then
        written[key] = true
        written[#written + 1] = key
      end
    end
  end
  return answers
end

function notes.add_changed(written)
  if #written > 0 then
    local keys = {}
    for n, key in ipairs(written) do
      keys[n] = key
    end
    feed.add_to_all({ type = "notes", keys = keys })
  end
end

return notes
