#!lua flags=allow-oom
local row = call("HMGET", META, "term", "holder")
if tonumber(row[1] or 0) == A.term and row[2] == A.node then
  check_all()
  call("HSET", META, "holder", "", "term_until", 0, "term_ttl", 0)
end
return answer(true)
