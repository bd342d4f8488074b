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
  for _, kind in ipairs({ "past", "failed" }) do
    local there = call("ZCARD", shelf_key(job, kind))
    if there > 0 then
      put("zset", TALLY, tally_name(job, kind), there)
    else
      drop("zset", TALLY, tally_name(job, kind))
    end
  end
end
return answer(true)
