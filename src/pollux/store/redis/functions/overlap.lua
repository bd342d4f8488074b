-- The live runs of a job that overlap a new one, as in `Run.overlaps_at`.
local overlap = {}
local call = op.call
local LOOK_ALL_MAX = 100 -- live runs of a job that are looked at one by one; of more only those that were due by now
local LOOKS_MAX = 1000 -- runs that do not overlap which are passed over; behind so many the next one is taken for one that does
local LOOKS_PAGE = 100

function overlap.is_met(run)
  return runs.cause_of(run) == "schedule" or run.st == "leased" or run.vis <= op.now
end

-- In the order of due times, what lies behind those that can overlap: a run for later is due later, unless the clock came back.
function overlap.behind_due(job)
  return "(" .. op.pad(math.max(op.now, writes.count_in(job.v, "clock"), job.last or op.now) + 1)
end

-- The id of the first of these live runs of a job that overlaps and that `fits`, mostly the very first; one that cannot be
-- read fits as false.
function overlap.first(job, live, fits)
  local from, upto, looks, page = "-", "+", 0, 1
  if call("ZCARD", live) > LOOK_ALL_MAX then
    upto = overlap.behind_due(job)
  end
  while true do
    local places = call("ZRANGEBYLEX", live, from, upto, "LIMIT", 0, page)
    for _, place in ipairs(places) do
      local id = runs.id_by_due(place)
      local run = runs.read(id) or false
      looks = looks + 1
      if looks > LOOKS_MAX or ((not run or overlap.is_met(run)) and fits(run)) then
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

return overlap
