#!lua flags=allow-oom
-- Add these jobs to their indexes; remove names and due times without a job.
for _, id in ipairs(A.ids) do
  local kind = call("TYPE", job_key(id)).ok
  local job = kind == "hash" and read_job(id)
  if job then
    put("zset", JOBS, id, 0)
    if job.next and job.on then
      put("zset", key_of(job.v, "due"), pad(job.next) .. id, 0)
    end
  elseif kind == "none" then
    drop("zset", JOBS, id)
  end
end
for _, member in ipairs(A.dues) do
  local job = read_job(string.sub(member, 16))
  if not (job and job.on and job.next and job.v == A.version and pad(job.next) .. job.id == member) then
    drop("zset", key_of(A.version, "due"), member)
  end
end
return answer(true)
