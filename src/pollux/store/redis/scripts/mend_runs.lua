#!lua flags=allow-oom
-- Add these runs to the indexes of their state, and remove them from all others.  The hash is the truth.
local mended = 0
for _, id in ipairs(A.ids) do
  local run = found_run(id)
  if run then
    for _, place in ipairs(all_places(run)) do
      drop("zset", place[1], place[2])
    end
    for _, place in ipairs(places_of(run)) do
      put("zset", place[1], place[2], place[3])
    end
    if is_live(run) and run.key and not field_of(UNIQUE, run.key) then
      put("hash", UNIQUE, run.key, id)
    end
    mended = mended + 1
  end
end
return answer(mended)
