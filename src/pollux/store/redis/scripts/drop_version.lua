#!lua flags=allow-oom
-- Forget a version, if it has nothing; the number of its term stays: terms only rise.
local number = A.number
if not versions_known()[number] then
  return answer("lost")
end
local counts, meta = counts_of(number), key_of(number, "meta")
local row = call("HMGET", meta, "holder", "term_until")
local is_led = (row[1] or "") ~= "" and tonumber(row[2] or 0) > now
if is_led or counts[1] > 0 or counts[2] > 0 or counts[3] > 0 or counts[7] > 0 then
  return answer("conflict")
end
call("DEL", key_of(number, "feed"))
set_count_in(number, "ends", 0)
call("HSET", meta, "holder", "", "term_until", 0, "term_ttl", 0)
call("HSET", VERSIONS, number, "0")
return answer("ok")
