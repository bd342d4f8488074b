#!lua flags=allow-oom
-- Remove the members of an index whose run is not in it.
local gone = 0
for _, member in ipairs(A.members) do
  local run = found_run(string.sub(member, A.begins))
  if not run or not is_place_of(run, A.key, member) then
    drop("zset", A.key, member)
    gone = gone + 1
  end
end
return answer(gone)
