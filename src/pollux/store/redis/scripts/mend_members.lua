#!lua flags=allow-oom
-- Take those members out of an index that name a run which does not stand there.
local gone = 0
for _, member in ipairs(A.members) do
  local run = found_run(string.sub(member, A.begins))
  if not run or not is_place_of(run, A.key, member) then
    drop("zset", A.key, member)
    gone = gone + 1
  end
end
return answer(gone)
