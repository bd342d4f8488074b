#!lua flags=allow-oom
-- Forget a version, if it has nothing; the number of its term stays: terms only rise.
local number = A.number

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
  writers[#writers + 1] = {
    check = function() end, -- they were read
    write = function()
      call("DEL", key_of(number, "feed"))
      call("HSET", key_of(number, "meta"), "holder", "", "term_until", 0, "term_ttl", 0)
      call("HSET", VERSIONS, number, "0")
    end,
  }
end
return answer_told(kind, { kind })
