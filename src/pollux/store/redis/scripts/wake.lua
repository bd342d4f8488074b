#!lua flags=allow-oom
local bells = {}
for version, is_there in pairs(versions_heard(OWN)) do
  for _, name in ipairs(BELLS) do
    local bell = key_of(version, name)
    check(bell, "stream")
    bells[bell] = is_there
  end
end
check(HOME, "hash")
for bell, is_there in pairs(bells) do
  ring_at(bell, is_there, "kind", "wake")
end
return answer(true)
