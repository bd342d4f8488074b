#!lua flags=no-writes
-- What is remembered of deleted jobs, in the order in which they went: {id, revision, last due or false}.
local tombs = {}
for n, id in ipairs(call("ZRANGE", GONE_LINE, A.after, A.after + A.limit - 1)) do
  local rev, last = string.match(call("HGET", GONE, id) or "0:", "^(%d+):(.*)$")
  tombs[n] = { id, tonumber(rev), tonumber(last) or false }
end
return answer(tombs)
