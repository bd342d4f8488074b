#!lua flags=allow-oom
-- Forget a version, if it has nothing: its feed, its bells, and its streams, which mean nothing without runs.  The number of
-- its term stays: terms only rise.  The first one keeps bells and streams: every opening makes them.
local number = A.number
local goes = { key_of(number, "feed") }
if number ~= DEFAULT then
  for _, name in ipairs({ "bell:runs", "bell:feed", "jobs:high", "jobs:normal", "jobs:low" }) do
    goes[#goes + 1] = key_of(number, name)
  end
end

local function judged()
  if not versions_known()[number] then
    return "lost"
  end
  local counts = counts_of(number)
  local row = call("HMGET", key_of(number, "meta"), "holder", "term_until")
  local is_led = (row[1] or "") ~= "" and tonumber(row[2] or 0) > now
  local has_any = counts[1] > 0 or counts[2] > 0 or counts[3] > 0 or counts[7] > 0
  return (is_led or has_any) and "conflict" or "ok"
end

local kind = judged()
if kind == "ok" then
  set_count_in(number, "ends", 0)
  for pr = 1, number ~= DEFAULT and 3 or 0 do -- what is said of the streams goes with them
    set_count_in(number, "owed" .. pr, 0)
    set_count_in(number, "last" .. pr, "")
    set_count_in(number, "kept" .. pr, "")
  end
  writers[#writers + 1] = {
    check = function()
      for _, key in ipairs(goes) do
        check(key, "stream")
      end
    end,
    write = function()
      call("DEL", unpack(goes))
      call("HSET", key_of(number, "meta"), "holder", "", "term_until", 0, "term_ttl", 0)
      call("HSET", VERSIONS, number, "0")
    end,
  }
end
return answer_told(kind, { kind })
