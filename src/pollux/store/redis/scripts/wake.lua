#!lua flags=allow-oom
local bells = {}
for version in pairs(versions_heard(OWN)) do
  for _, bell in ipairs({ "bell:runs", "bell:feed" }) do
    bells[#bells + 1] = key_of(version, bell)
    check(bells[#bells], "stream")
  end
end
check(HOME, "hash")
for _, bell in ipairs(bells) do
  call("XADD", bell, "MAXLEN", "~", BELL_MAX, "*", "kind", "wake")
end
return answer(true)
