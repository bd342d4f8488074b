#!lua flags=no-writes
return answer(tonumber(call("HGET", META, "term") or 0))
