#!lua flags=no-writes
-- {number, counts, term, leader} of every version in use, by number.
local rows = {}
for n, version in ipairs(versions_there()) do
  local row = call("HMGET", key_of(version, "meta"), "term", "holder", "term_until")
  local leads = tonumber(row[3] or 0) > now and row[2] or ""
  rows[n] = { version, counts_of(version), tonumber(row[1] or 0), leads }
end
return answer(rows)
