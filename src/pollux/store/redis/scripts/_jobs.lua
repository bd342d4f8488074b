-- Jobs: a hash each; enabled ones with a next due are also in DUE, by (next due, id).  An empty text is
-- no time, and no memory.
local JOB_GONE = "its job was deleted"
local GONE_MAX = 100000 -- deleted jobs whose revision and last due are remembered
local JOB_COLUMNS = { "rev", "next", "last", "mem", "def", "v" }

local function job_key(id)
  return PREFIX .. "job:" .. id
end

local function job_row(id)
  local row = call("HMGET", job_key(id), unpack(JOB_COLUMNS))
  if not row[1] then
    return false
  end
  return { id, tonumber(row[1]) or 0, tonumber(row[2]) or false, tonumber(row[3]) or false, row[4] ~= "" and row[4], row[5],
    tonumber(row[6]) or DEFAULT }
end

local known_versions = {} -- of jobs; false: there is no such job

local function version_of(id)
  local known = known_versions[id]
  if known == nil then
    local row = call("HMGET", job_key(id), "rev", "v")
    known = row[1] and (tonumber(row[2]) or DEFAULT)
    known_versions[id] = known
  end
  return known
end

local function has_job(id)
  return version_of(id) and true or false
end

-- jobs as they stand by now; what changed in `fields` is written at the end
local jobs = {}

local function read_job(id)
  local job = jobs[id]
  if job == nil then
    local row = call("HMGET", job_key(id), "rev", "next", "last", "on", "once", "v", "behind")
    job = row[1] and {
      id = id,
      rev = tonumber(row[1]) or 0,
      next = tonumber(row[2]) or false,
      last = tonumber(row[3]) or false,
      on = row[4] == "1",
      once = row[5] == "1",
      v = tonumber(row[6]) or DEFAULT,
      behind = row[7],
      fields = {},
    }
    jobs[id], known_versions[id] = job or false, job and job.v
  end
  return job and not job.is_gone and job or nil
end

-- goes with jobs
writers[#writers + 1] = {
  check = function()
    for id, job in pairs(jobs) do
      if job and (job.is_gone or next(job.fields)) then
        check(job_key(id), "hash")
      end
    end
  end,
  write = function()
    for id, job in pairs(jobs) do
      if job and job.is_gone then
        call("DEL", job_key(id))
      elseif job and next(job.fields) then
        local fields = {}
        for name, value in pairs(job.fields) do
          fields[#fields + 1] = name
          fields[#fields + 1] = value
        end
        call("HSET", job_key(id), unpack(fields))
      end
    end
  end,
}

-- next and last due; false for no time
local function move_job(job, next_due, last_due)
  if job.next ~= next_due then
    if job.next and job.on then
      drop("zset", key_of(job.v, "due"), pad(job.next) .. job.id)
    end
    job.fields.next = next_due and text(next_due) or ""
    if next_due and job.on then
      put("zset", key_of(job.v, "due"), pad(next_due) .. job.id, 0)
    end
    job.next = next_due
  end
  if last_due and job.last ~= last_due then
    job.fields.last = text(last_due)
    job.last = last_due
  end
  if job.once and last_due and not next_due then
    put("zset", SPENT, job.id, last_due)
  end
end

-- which of its firings was last seen waiting for another of its runs
local function note_behind(job, run_id)
  job.behind, job.fields.behind = run_id, run_id
end

-- `new` is {definition, release, source, enabled, once}
local function define_job(job, new, rev)
  job.rev, job.on, job.once = rev, new.on, new.once
  local fields = job.fields
  fields.def, fields.rel, fields.src, fields.rev = new.def, text(new.rel), new.src, text(rev)
  fields.on, fields.once = new.on and "1" or "0", new.once and "1" or "0"
end

-- of the first version they are counted as all that are in no other
local function count_job(version, change)
  if version ~= DEFAULT then
    set_count_in(version, "jobs", count_in(version, "jobs") + change)
  end
end

-- Of a job that was deleted or moved with more runs than one call takes: what is left to do, by id.
local UNFINISHED = PREFIX .. "unfinished"

-- what still waits of one of the same id that was deleted must not become its own: that ends first
local function add_job(id, new, rev, next_due, last_due, memory, version)
  if field_of(UNFINISHED, id) then
    error({ err = "UNFINISHED " .. id })
  end
  local job = { id = id, next = false, last = false, v = version, fields = { v = text(version) } }
  jobs[id], known_versions[id] = job, version
  count_job(version, 1)
  use(version)
  define_job(job, new, rev)
  if memory then
    job.fields.mem = memory
  end
  put("zset", JOBS, id, 0)
  move_job(job, next_due, last_due)
end

-- what is left of a deleted job: no due time fires again in its place
local remembered, forgotten = 0, 0

local function remember_job(job)
  put("hash", TOMBS, job.id, text(job.rev) .. ":" .. (job.last and text(job.last) or ""))
  put("zset", TOMBS_ORDER, job.id, next_seq())
  remembered = remembered + 1
  if call("ZCARD", TOMBS_ORDER) + remembered - forgotten > GONE_MAX then
    local oldest = call("ZRANGE", TOMBS_ORDER, forgotten, forgotten)[1]
    if oldest then
      drop("hash", TOMBS, oldest)
      drop("zset", TOMBS_ORDER, oldest)
      forgotten = forgotten + 1
    end
  end
end

local function recall_job(id)
  local gone = field_of(TOMBS, id)
  if not gone then
    return 0, false
  end
  drop("hash", TOMBS, id)
  drop("zset", TOMBS_ORDER, id)
  local rev, last = string.match(gone, "^(%d+):(%-?%d*)")
  return tonumber(rev) or 0, tonumber(last) or false
end

local function drop_job(job)
  if job.next and job.on then
    drop("zset", key_of(job.v, "due"), pad(job.next) .. job.id)
  end
  drop("zset", JOBS, job.id)
  drop("zset", SPENT, job.id)
  count_job(job.v, -1)
  jobs[job.id], known_versions[job.id] = { id = job.id, is_gone = true, fields = {} }, false
  remember_job(job)
end
