-- Jobs: a hash each; enabled ones with a next due are also in `due`, by (next due, id).  An empty text is no time, and no
-- memory.
local jobs = { GONE = "its job was deleted" }
local call, text, pad, DEFAULT = op.call, op.text, op.pad, op.DEFAULT
local zadd, hset, zrem, hdel, field_of, check = writes.zadd, writes.hset, writes.zrem, writes.hdel, writes.field_of, writes.check
local GONE_MAX = 100000 -- deleted jobs whose revision and last due are remembered
local COLUMNS = { "rev", "next", "last", "mem", "def", "v" }

-- {id, revision, next due, last due, memory, definition, version}, as it goes to the caller
function jobs.row(id)
  local row = call("HMGET", op.keys.job .. id, unpack(COLUMNS))
  if not row[1] then
    return false
  end
  return { id, tonumber(row[1]) or 0, tonumber(row[2]) or false, tonumber(row[3]) or false, row[4] ~= "" and row[4], row[5],
    tonumber(row[6]) or DEFAULT }
end

-- false if there is no such job
function jobs.version_of(id)
  local known = op.job_versions[id]
  if known == nil then
    local row = call("HMGET", op.keys.job .. id, "rev", "v")
    known = row[1] and (tonumber(row[2]) or DEFAULT)
    op.job_versions[id] = known
  end
  return known
end

function jobs.exists(id)
  return jobs.version_of(id) and true or false
end

-- a job with the changes of this operation; those in `fields` are written at the end
function jobs.read(id)
  local job = op.jobs[id]
  if job == nil then
    local row = call("HMGET", op.keys.job .. id, "rev", "next", "last", "on", "once", "v", "behind")
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
    op.jobs[id], op.job_versions[id] = job or false, job and job.v
  end
  return job and not job.is_gone and job or nil
end

writes.writers[#writes.writers + 1] = {
  check = function()
    for id, job in pairs(op.jobs) do
      if job and (job.is_gone or next(job.fields)) then
        check(op.keys.job .. id, "hash")
      end
    end
  end,
  write = function()
    for id, job in pairs(op.jobs) do
      if job and job.is_gone then
        call("DEL", op.keys.job .. id)
      elseif job and next(job.fields) then
        local fields = {}
        for name, value in pairs(job.fields) do
          fields[#fields + 1] = name
          fields[#fields + 1] = value
        end
        call("HSET", op.keys.job .. id, unpack(fields))
      end
    end
  end,
}

-- next and last due; false for no time
function jobs.set_times(job, next_due, last_due)
  if job.next ~= next_due then
    local due = op.keys_in(job.v).due
    if job.next and job.on then
      zrem(due, pad(job.next) .. job.id)
    end
    job.fields.next = next_due and text(next_due) or ""
    if next_due and job.on then
      zadd(due, pad(next_due) .. job.id, "0")
    end
    job.next = next_due
  end
  if last_due and job.last ~= last_due then
    job.fields.last = text(last_due)
    job.last = last_due
  end
  if job.once and last_due and not next_due then
    zadd(op.keys.spent, job.id, last_due)
  end
end

-- which of its firings was last seen waiting for another of its runs
function jobs.note_behind(job, run_id)
  job.behind, job.fields.behind = run_id, run_id
end

-- `new` is {definition, release, source, enabled, once}
function jobs.define(job, new, rev)
  job.rev, job.on, job.once = rev, new.on, new.once
  local fields = job.fields
  fields.def, fields.rel, fields.src, fields.rev = new.def, text(new.rel), new.src, text(rev)
  fields.on, fields.once = new.on and "1" or "0", new.once and "1" or "0"
end

-- of the default version they are counted as all that are in no other
function jobs.count(version, change)
  if version ~= DEFAULT then
    writes.set_count_in(version, "jobs", writes.count_in(version, "jobs") + change)
  end
end

-- What still waits of a deleted job of the same id must not become the new one's: that ends first.
function jobs.add(id, new, rev, next_due, last_due, memory, version)
  if field_of(op.keys.unfinished, id) then
    error({ err = "UNFINISHED " .. id })
  end
  local job = { id = id, next = false, last = false, v = version, fields = { v = text(version) } }
  op.jobs[id], op.job_versions[id] = job, version
  jobs.count(version, 1)
  versions.use(version)
  jobs.define(job, new, rev)
  if memory then
    job.fields.mem = memory
  end
  zadd(op.keys.jobs, id, "0")
  jobs.set_times(job, next_due, last_due)
end

-- what is left of a deleted job: no due time fires again in its place
function jobs.remember(job)
  hset(op.keys.tombs, job.id, text(job.rev) .. ":" .. (job.last and text(job.last) or ""))
  zadd(op.keys.tombs_order, job.id, writes.next_seq())
  op.remembered = op.remembered + 1
  if call("ZCARD", op.keys.tombs_order) + op.remembered - op.forgotten > GONE_MAX then
    local oldest = call("ZRANGE", op.keys.tombs_order, op.forgotten, op.forgotten)[1]
    if oldest then
      hdel(op.keys.tombs, oldest)
      zrem(op.keys.tombs_order, oldest)
      op.forgotten = op.forgotten + 1
    end
  end
end

-- revision and last due of a deleted job, which is remembered no more
function jobs.recall(id)
  local gone = field_of(op.keys.tombs, id)
  if not gone then
    return 0, false
  end
  hdel(op.keys.tombs, id)
  zrem(op.keys.tombs_order, id)
  local rev, last = string.match(gone, "^(%d+):(%-?%d*)")
  return tonumber(rev) or 0, tonumber(last) or false
end

function jobs.drop(job)
  if job.next and job.on then
    zrem(op.keys_in(job.v).due, pad(job.next) .. job.id)
  end
  zrem(op.keys.jobs, job.id)
  zrem(op.keys.spent, job.id)
  jobs.count(job.v, -1)
  op.jobs[job.id], op.job_versions[job.id] = { id = job.id, is_gone = true, fields = {} }, false
  jobs.remember(job)
end

-- What is noted of a job that was deleted or moved with more runs than one call takes.  Deleted: {behind which place its runs
-- are left, or false; the last one that is to end, by their coming; why}.  Moved: {place, version}.
function jobs.unfinished(id)
  local packed, is_of = field_of(op.keys.unfinished, id), op.is_of
  local is_packed, left = pcall(cmsgpack.unpack, packed or "")
  local is_ours = is_packed and type(left) == "table" and (not left[1] or is_of("string", left[1]))
    and is_of("number", left[2]) and (not left[3] or is_of("string", left[3]))
  return packed and is_ours and left or nil
end

-- which entries of the feed its memory names as learnt; a text that is no memory names none
function jobs.memory(id)
  local is_whole, memory = pcall(cjson.decode, call("HGET", op.keys.job .. id, "mem") or "")
  return is_whole and type(memory) == "table" and memory or {}
end

return jobs
