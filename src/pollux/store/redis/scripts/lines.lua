#!lua flags=no-writes
-- {visible by now, earliest visible time or false} of each priority, of our version; `before`: of
-- those that are visible only what stands before that run.
local mark = A.before ~= "" and read_run(A.before) or nil
local found = {}

-- our line and a mark of another version are ordered by time alone
local function ready_in(line, pr)
  if A.before == "" or (mark and mark.st == "ready" and pr < mark.pr) then
    return call("ZCOUNT", line, "-inf", now)
  end
  if not mark or mark.st ~= "ready" or pr > mark.pr then
    return 0
  end
  local rank = OWN == (mark.v or DEFAULT) and call("ZRANK", line, pad_seq(mark.q) .. mark.id)
  if rank and mark.vis <= now then
    return rank
  end
  return call("ZCOUNT", line, "-inf", mark.vis <= now and "(" .. text(mark.vis) or now)
end

for pr = 1, 3 do
  local line = key_of(OWN, "queue:" .. pr)
  local head = call("ZRANGE", line, 0, 0, "WITHSCORES")
  found[pr] = { ready_in(line, pr), head[2] and tonumber(head[2]) or false }
end
return answer(found)
