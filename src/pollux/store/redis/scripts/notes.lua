#!lua flags=no-writes
-- Notes whose key begins so, by key; those after one, a page at a time, and from where the next page goes on.
local rows, next_after = {}, false
local from = A.after and "(" .. A.after or "[" .. A.prefix
local keys = call("ZRANGEBYLEX", NOTE_KEYS, from, "+", "LIMIT", 0, A.limit)
for n, key in ipairs(keys) do
  if string.sub(key, 1, #A.prefix) ~= A.prefix then
    break
  end
  local note = read_note(key)
  if note and (A.expired or not note.ends or note.ends > now) then
    rows[#rows + 1] = { key, note.value or "", note.rev or 0, note.ends }
  end
  if n == A.limit then
    next_after = key
  end
end
return answer({ next_after, rows })
