#!lua flags=allow-oom
for _, bell in ipairs({ BELL_RUNS, BELL_FEED }) do
  call("XADD", bell, "MAXLEN", "~", BELL_MAX, "*", "kind", "wake")
end
return answer(true)
