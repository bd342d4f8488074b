#!lua flags=allow-oom
for version in pairs(versions_known()) do
  for _, bell in ipairs({ "bell:runs", "bell:feed" }) do
    call("XADD", key_of(version, bell), "MAXLEN", "~", BELL_MAX, "*", "kind", "wake")
  end
end
if not call("HGET", VERSIONS, OWN) then
  for _, bell in ipairs({ BELL_RUNS, BELL_FEED }) do
    call("XADD", bell, "MAXLEN", "~", BELL_MAX, "*", "kind", "wake")
  end
end
return answer(true)
