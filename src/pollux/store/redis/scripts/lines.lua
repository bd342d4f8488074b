#!lua flags=no-writes
-- {visible by now, earliest visible time or false} of each priority, of our version or of all of them; `before`: of
-- those that are visible only what stands before that run.
local mark = A.before ~= "" and read_run(A.before) or nil
local found = {}

-- a line of another version is ordered against the mark by time alone
local function ready_in(line, pr, version)
  if A.before == "" or (mark and mark.st == "ready" and pr < mark.pr) then
    return call("ZCOUNT", line, "-inf", now)
  end
  if not mark or mark.st ~= "ready" or pr > mark.pr then
    return 0
  end
  local rank = version == (mark.v or DEFAULT) and call("ZRANK", line, pad_seq(mark.q) .. mark.id)
  if rank and mark.vis <= now then
    return rank
  end
  return call("ZCOUNT", line, "-inf", mark.vis <= now and "(" .. text(mark.vis) or now)
end

for pr = 1, 3 do
  local ready, first = 0, false
  for each in pairs(versions_known()) do
    if A.v == 0 or each == OWN then
      local line = key_of(each, "queue:" .. pr)
      local head = call("ZRANGE", line, 0, 0, "WITHSCORES")
      ready = ready + ready_in(line, pr, each)
      if head[2] and (not first or tonumber(head[2]) < first) then
        first = tonumber(head[2])
      end
    end
  end
  found[pr] = { ready, first }
end
return answer(found)
