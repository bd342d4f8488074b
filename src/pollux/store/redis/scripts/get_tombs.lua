#!lua flags=no-writes
-- What is remembered of deleted jobs, in the order in which they went: {place, id, revision, last due or false}.  A value
-- that is not of our making says nothing.
local PLACE_MAX = 9007199254740991
local tombs = {}
local found = call("ZRANGEBYSCORE", TOMBS_ORDER, "(" .. text(A.after), PLACE_MAX, "WITHSCORES", "LIMIT", 0, A.limit)
for n = 1, #found, 2 do
  local rev, last = string.match(call("HGET", TOMBS, found[n]) or "", "^(%d+):(%-?%d*)")
  tombs[#tombs + 1] = { math.ceil(found[n + 1]), found[n], tonumber(rev) or 0, tonumber(last) or false }
end
return answer(tombs)
