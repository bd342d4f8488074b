-- How is a job kept?  As a hash; enabled ones with a next due also stand in DUE, by (next due, id).
local JOB_GONE = "its job was deleted"
local GONE_MAX = 100000 -- deleted jobs whose revision and last due are remembered
local JOB_COLUMNS = { "rev", "next", "last", "mem", "def" }

local function job_key(id)
  return PREFIX .. "job:" .. id
end

local function job_row(id)
  local row = call("HMGET", job_key(id), unpack(JOB_COLUMNS))
  if not row[1] then
    return false
  end
  return { id, tonumber(row[1]), tonumber(row[2]) or false, tonumber(row[3]) or false, row[4], row[5] }
end

local known_jobs = {}

local function has_job(id)
  local known = known_jobs[id]
  if known == nil then
    known = call("EXISTS", job_key(id)) == 1
    known_jobs[id] = known
  end
  return known
end

-- `job` is {next, last, on, once} as it stands; false for no time
local function move_job(id, job, next_due, last_due)
  local key = job_key(id)
  if job.next ~= next_due then
    if job.next and job.on then
      call("ZREM", DUE, pad(job.next) .. id)
    end
    if next_due then
      call("HSET", key, "next", next_due)
      if job.on then
        call("ZADD", DUE, 0, pad(next_due) .. id)
      end
    else
      call("HDEL", key, "next")
    end
  end
  if last_due and job.last ~= last_due then
    call("HSET", key, "last", last_due)
  end
  job.next, job.last = next_due, last_due
  if job.once and last_due and not next_due then
    call("ZADD", SPENT, last_due, id)
  end
end

local function read_job(id)
  local row = call("HMGET", job_key(id), "rev", "next", "last", "on", "once", "rel", "src", "def")
  if not row[1] then
    return nil
  end
  return {
    rev = tonumber(row[1]),
    next = tonumber(row[2]) or false,
    last = tonumber(row[3]) or false,
    on = row[4] == "1",
    once = row[5] == "1",
    rel = tonumber(row[6]),
    src = row[7],
    def = row[8],
  }
end

local function write_definition(id, put, rev)
  call("HSET", job_key(id), "def", put.def, "rel", put.rel, "src", put.src, "rev", rev,
    "on", put.on and "1" or "0", "once", put.once and "1" or "0")
end

local function add_job(id, put, rev, next_due, last_due, memory)
  write_definition(id, put, rev)
  if memory then
    call("HSET", job_key(id), "mem", memory)
  end
  call("ZADD", JOBS, 0, id)
  known_jobs[id] = true
  move_job(id, { next = false, last = false, on = put.on, once = put.once }, next_due, last_due)
end

-- what is left of a deleted job: no due time fires again in its place
local function remember_job(id, job)
  call("HSET", GONE, id, text(job.rev) .. ":" .. (job.last and text(job.last) or ""))
  call("ZADD", GONE_LINE, next_seq(), id)
  if call("ZCARD", GONE_LINE) > GONE_MAX then
    call("HDEL", GONE, call("ZPOPMIN", GONE_LINE)[1])
  end
end

local function recall_job(id)
  local gone = call("HGET", GONE, id)
  if not gone then
    return 0, false
  end
  call("HDEL", GONE, id)
  call("ZREM", GONE_LINE, id)
  local rev, last = string.match(gone, "^(%d+):(.*)$")
  return tonumber(rev), tonumber(last) or false
end

local function drop_job(id, job)
  if job.next and job.on then
    call("ZREM", DUE, pad(job.next) .. id)
  end
  call("DEL", job_key(id))
  call("ZREM", JOBS, id)
  call("ZREM", SPENT, id)
  known_jobs[id] = false
  remember_job(id, job)
end
