#!lua flags=allow-oom
-- Go on where deletes were cut off, and tell where a move was: of these jobs, or of any if none is named.  What still waits of
-- deleted ones ends, of no more than `limit` runs.  Answers how many were looked at, whether there are more, and a
-- move that the caller is to go on with: {id, behind which place, into which version}.
promote()
local looked, is_more, move, ids = 0, false, false, A.ids
if #ids == 0 then
  ids = call("HRANDFIELD", UNFINISHED, A.limit)
  is_more = call("HLEN", UNFINISHED) > #ids
end
for _, id in ipairs(ids) do
  local left = unfinished(id)
  if not left then
    drop("hash", UNFINISHED, id)
  elseif left[3] then
    local count, has_more = end_waiting(id, left[2], left[1], left[3], A.limit - looked)
    looked, is_more = looked + count, is_more or has_more
  else
    is_more, move = true, { id, left[1], left[2] }
  end
end
tell_gathered()
return answer({ looked, is_more, move })
