#!lua flags=no-writes
local rows = {}
for _, packed in ipairs(call("HVALS", NODES)) do
  local node = node_of(packed)
  if node and node[1] > now then
    rows[#rows + 1] = { node[4], node[5] }
  end
end
return answer(rows)
