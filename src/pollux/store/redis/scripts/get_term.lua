#!lua flags=no-writes
-- {number, version} of every version that had a term, those after one, by version.
local terms = {}
for version in pairs(versions_known()) do
  local number = tonumber(call("HGET", key_of(version, "meta"), "term") or 0)
  if number > 0 and version > A.after then
    terms[#terms + 1] = { number, version }
  end
end
table.sort(terms, function(one, other) return one[2] < other[2] end)
return answer(terms)
