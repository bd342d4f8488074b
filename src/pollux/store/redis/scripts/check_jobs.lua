#!lua flags=no-writes
-- Jobs that are missing in an index: {id, words} for each; and due times of a version that belong to no job.
local wrong, nobodys = {}, {}
for _, id in ipairs(A.ids) do
  local job = call("TYPE", job_key(id)).ok == "hash" and read_job(id)
  if job then
    if not call("ZSCORE", JOBS, id) then
      wrong[#wrong + 1] = { id, "is not in the list of jobs" }
    end
    if job.next and job.on and not call("ZSCORE", key_of(job.v, "due"), pad(job.next) .. id) then
      wrong[#wrong + 1] = { id, "is not among the due times" }
    end
  else
    wrong[#wrong + 1] = { id, "there is no such job, or it cannot be read" }
  end
end
for _, member in ipairs(A.dues) do
  local job = read_job(string.sub(member, 16))
  if not (job and job.on and job.next and job.v == A.version and pad(job.next) .. job.id == member) then
    nobodys[#nobodys + 1] = member
  end
end
return answer({ wrong, nobodys })
