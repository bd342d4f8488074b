#!lua flags=no-writes
-- What is told, and what is there: {name, told, counted} where they differ; of the finished runs of these jobs, too.
local wrong = {}

local function compare(name, told, counted)
  if told ~= counted then
    wrong[#wrong + 1] = { name, told, counted }
  end
end

local ends = 0
for _, item in ipairs(call("XRANGE", FEED, "-", "+")) do
  ends = ends + (tonumber(item[2][2]) or 0)
end
compare("ends", count_of("ends"), ends)
for _, job in ipairs(A.jobs) do
  compare("finished runs of " .. job, tonumber(call("ZSCORE", TALLY, job) or 0), call("ZCARD", shelf_key(job, false)))
end
return answer(wrong)
