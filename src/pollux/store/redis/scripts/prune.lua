#!lua flags=allow-oom
-- Remove finished runs, ended once-jobs and old audit lines as told.
local LOOK_MAX = 1000 -- once-jobs that are looked at in one call
local gone = 0

local function left()
  return math.max(0, A.limit - gone)
end

-- places that no run stands at any more go without being counted
local function forget_at(history, places, count)
  for n = 1, math.min(#places, count) do
    local run = read_run(place_id(places[n]))
    if run and not is_live(run) then
      forget(run)
      gone = gone + 1
    else
      drop("zset", history, places[n])
    end
  end
end

local function drop_older(histories, before)
  local places, class_of = {}, {}
  for _, history in ipairs(histories) do
    for _, place in ipairs(call("ZRANGEBYLEX", fresh(history), "-", "(" .. pad(before), "LIMIT", 0, left())) do
      places[#places + 1] = place
      class_of[place] = history
    end
  end
  table.sort(places)
  for n = 1, math.min(#places, left()) do
    forget_at(class_of[places[n]], { places[n] }, 1)
  end
end

local function drop_beyond(keep)
  local found = call("ZRANGEBYSCORE", JOB_COUNTERS, "(" .. text(keep), "+inf", "WITHSCORES", "LIMIT", 0, left())
  for n = 1, #found, 2 do
    local name, failed = found[n], string.match(found[n], "^failed (.*)$")
    local history = failed and history_key(failed, "failed") or history_key(name, "history")
    local excess = math.min(left(), tonumber(found[n + 1]) + (counter_changes[name] or 0) - keep)
    local places = excess > 0 and call("ZRANGE", fresh(history), 0, excess - 1) or {}
    if excess > 0 and #places == 0 then -- the counter is wrong: there is none
      drop("zset", JOB_COUNTERS, name)
    end
    forget_at(history, places, left())
  end
end

-- it ended with its last run; if no run taught the leader anything, or that cannot be read, when it was due
local function has_ended(id, job, before)
  local is_whole, memory = pcall(cjson.decode, call("HGET", job_key(id), "mem") or "")
  local told = is_whole and type(memory) == "table" and memory.last_end_ms
  local ended = type(told) == "number" and told or job.last
  if not ended or ended >= before or call("EXISTS", live_key(id)) == 1 or call("EXISTS", history_key(id, "dead")) == 1 then
    return false
  end
  for _, kind in ipairs({ "history", "failed" }) do
    local newest = call("ZREVRANGE", history_key(id, kind), 0, 0)[1]
    if newest and string.sub(newest, 1, 15) >= pad(before) then
      return false
    end
  end
  return true
end

local function drop_once(before)
  for _, id in ipairs(call("ZRANGEBYSCORE", SPENT, "-inf", "(" .. text(before), "LIMIT", 0, LOOK_MAX)) do
    local job = read_job(id)
    if job and left() > 0 and has_ended(id, job, before) then
      drop_job(job)
      gone = gone + 1
    end
  end
end

local function drop_lines(keep)
  local there = call("XLEN", LOG)
  local beyond = math.min(left(), there - math.max(1, keep))
  if beyond > 0 then
    writers[#writers + 1] = {
      check = function() end, -- it was asked how long it is
      write = function()
        call("XTRIM", LOG, "MAXLEN", "=", there - beyond)
      end,
    }
    gone = gone + beyond
  end
end

for _, id in ipairs(A.ids) do
  local run = read_run(id)
  if run and not is_live(run) and left() > 0 then
    forget(run)
    gone = gone + 1
  end
end
if A.unchanged_before then
  drop_older({ FINISHED_UNCHANGED }, A.unchanged_before)
end
if A.finished_before then
  drop_older({ FINISHED_PLAIN, FINISHED_UNCHANGED }, A.finished_before)
end
if A.keep_per_job then
  drop_beyond(A.keep_per_job)
end
if A.once_before then
  drop_once(A.once_before)
end
if A.dead_before then
  drop_older({ FINISHED_DEAD }, A.dead_before)
end
if A.dead_max then
  local excess = math.min(left(), call("ZCARD", fresh(FINISHED_DEAD)) - A.dead_max)
  if excess > 0 then
    forget_at(FINISHED_DEAD, call("ZRANGE", FINISHED_DEAD, 0, excess - 1), excess)
  end
end
if A.log_max then
  drop_lines(A.log_max)
end
return answer_told(gone, { text(gone) })
