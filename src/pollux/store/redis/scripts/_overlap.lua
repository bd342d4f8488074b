-- The live runs of a job that overlap a new one, as in `Run.overlaps_at`.
local LOOK_ALL_MAX = 100 -- live runs of a job that are looked at one by one; of more only those that were due by now
local LOOKS_MAX = 1000 -- runs that do not overlap which are passed over; behind so many the next one is taken for one that does
local LOOKS_PAGE = 100

local function overlaps(run)
  return cause_of(run) == "schedule" or run.st == "leased" or run.vis <= now
end

-- In the order of due times, what lies behind those that can overlap: a run for later is due later, unless the clock came back.
local function behind_due(job)
  return "(" .. pad(math.max(now, count_in(job.v, "clock"), job.last or now) + 1)
end

-- The id of the first of these live runs of a job that overlaps and that `fits`, mostly the very first; one that cannot be
-- read fits as false.
local function first_overlapping(job, live, fits)
  local from, upto, looks, page = "-", "+", 0, 1
  if call("ZCARD", live) > LOOK_ALL_MAX then
    upto = behind_due(job)
  end
  while true do
    local places = call("ZRANGEBYLEX", live, from, upto, "LIMIT", 0, page)
    for _, place in ipairs(places) do
      local id = string.sub(place, 16)
      local run = read_run(id) or false
      looks = looks + 1
      if looks > LOOKS_MAX or ((not run or overlaps(run)) and fits(run)) then
        return id
      end
      from = "(" .. place
    end
    if #places < page then
      return nil
    end
    page = LOOKS_PAGE
  end
end
