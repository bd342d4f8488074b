-- Notes: a packed value in one hash; NOTE_KEYS orders the keys, NOTE_ENDS their expiry.
local function mark_stop(key)
  if string.sub(key, 1, 5) == "stop:" or string.sub(key, 1, 8) == "setting:" then
    set_count("stops", count_of("stops") + 1)
  end
end

local function read_note(key)
  local packed = field_of(NOTES, key)
  if not packed then
    return nil
  end
  local rev, ends, value = string.match(packed, "^(%d+):(%-?%d*):(.*)$")
  return { rev = tonumber(rev), ends = tonumber(ends) or false, value = value }
end

local function set_note(key, value, ends, rev)
  local count = math.max(count_of("notes") + 1, rev)
  set_count("notes", count)
  put("hash", NOTES, key, text(rev > 0 and rev or count) .. ":" .. (ends and text(ends) or "") .. ":" .. value)
  put("zset", NOTE_KEYS, key, 0)
  if ends then
    put("zset", NOTE_ENDS, key, ends)
  else
    drop("zset", NOTE_ENDS, key)
  end
  mark_stop(key)
end

local function drop_note(key)
  drop("hash", NOTES, key)
  drop("zset", NOTE_KEYS, key)
  drop("zset", NOTE_ENDS, key)
  mark_stop(key)
end

local has_swept = false

local function drop_expired_notes()
  for _, key in ipairs(has_swept and {} or call("ZRANGEBYSCORE", NOTE_ENDS, "-inf", now, "LIMIT", 0, PAY_MAX)) do
    drop_note(key)
  end
  has_swept = true
end

-- would it change nothing?
local function is_same_note(stored, value, ends)
  if not value or not stored then
    return not value and not stored
  end
  return stored.value == value and stored.ends == ends
end

-- puts are {key, value or false, revision or false, end or false}; the keys written are added to `written`
local function write_notes(puts, written)
  local answers = {}
  if #puts == 0 then
    return answers
  end
  drop_expired_notes()
  for n, each in ipairs(puts) do
    local key, value, revision, ends = unpack(each, 1, 4)
    local stored = read_note(key)
    if stored and stored.ends and stored.ends <= now then
      stored = nil
    end
    if revision and revision ~= (stored and stored.rev or 0) then
      answers[n] = "conflict"
    elseif not revision and is_same_note(stored, value, ends) then
      answers[n] = "already"
    else
      answers[n] = "ok"
      if value then
        set_note(key, value, ends, 0)
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

local function tell_notes(written)
  if #written > 0 then
    local keys = {}
    for n, key in ipairs(written) do
      keys[n] = key
    end
    tell_everywhere({ type = "notes", keys = keys })
  end
end
