#!lua flags=no-writes
-- Members of this index whose run is not in it: {member, words} for each.
local wrong = {}
for _, member in ipairs(A.members) do
  local run, why = found_run(string.sub(member, A.begins))
  if not run then
    wrong[#wrong + 1] = { member, why }
  elseif not is_place_of(run, A.key, member) then
    wrong[#wrong + 1] = { member, "it is " .. run.st .. ", and stands elsewhere" }
  end
end
return answer(wrong)
