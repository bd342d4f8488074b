#!lua flags=no-writes
-- Stored counts and real ones: {name, stored, counted} where they differ; of the finished runs of these jobs, too.
local wrong = {}

local function compare(name, told, counted)
  if told ~= counted then
    wrong[#wrong + 1] = { name, told, counted }
  end
end

for _, version in ipairs(A.versions) do
  local ends = 0
  for _, item in ipairs(call("XRANGE", key_of(version, "feed"), "-", "+")) do
    ends = ends + (item[2][1] == "ends" and tonumber(item[2][2]) or 0)
  end
  compare("ends in version " .. text(version), count_in(version, "ends"), ends)
end
for _, job in ipairs(A.jobs) do
  for _, kind in ipairs({ "history", "failed" }) do
    local told = tonumber(call("ZSCORE", JOB_COUNTERS, counter_name(job, kind)) or 0)
    compare((kind == "history" and "finished" or "failed") .. " runs of " .. job, told, call("ZCARD", history_key(job, kind)))
  end
end
return answer(wrong)
