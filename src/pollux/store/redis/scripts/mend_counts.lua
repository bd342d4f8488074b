#!lua flags=allow-oom
-- Count again.
for _, version in ipairs(A.versions) do
  local ends = 0
  for _, item in ipairs(call("XRANGE", key_of(version, "feed"), "-", "+")) do
    ends = ends + (item[2][1] == "ends" and tonumber(item[2][2]) or 0)
  end
  set_count_in(version, "ends", ends)
end
for _, job in ipairs(A.jobs) do
  for _, kind in ipairs({ "history", "failed" }) do
    local there = call("ZCARD", history_key(job, kind))
    if there > 0 then
      put("zset", JOB_COUNTERS, counter_name(job, kind), there)
    else
      drop("zset", JOB_COUNTERS, counter_name(job, kind))
    end
  end
end
return answer(true)
