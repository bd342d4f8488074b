-- Lines of the audit log, written with the change that they tell of: numbered, counted and chained here (decision 0055).
--
-- A line is {time as text, actor, action, subject and detail with separators, its JSON without the closing brace, count}.  Its
-- hash goes over the one before and all of its fields, as `chained` in `model/note.py`.
local audit = {}
local call, text = op.call, op.text
local SEPARATOR = "\31"

local function number_of(last)
  return last and tonumber(string.match(last[1], "^%d+")) or 0
end

local function chain_of(last)
  return last and string.match(last[2][2], '"chain":"(%x*)"') or ""
end

-- `count`: how many items were done with them; without it each has its own
function audit.write(lines, count)
  if not lines[1] then
    return
  end
  local last = call("XREVRANGE", op.keys.log, "+", "-", "COUNT", 1)[1]
  local seq, chain = number_of(last), chain_of(last)
  for _, line in ipairs(lines) do
    seq = seq + 1
    local number = count or line[4]
    chain = sha256(table.concat({ chain, text(seq), line[1], text(number), line[2] }, SEPARATOR))
    local counted = number > 0 and ',"count":' .. text(number) or ""
    op.lines[#op.lines + 1] = { seq, line[3] .. counted .. ',"seq":' .. text(seq) .. ',"chain":"' .. chain .. '"}' }
  end
end

-- The lines of this call, if anything was done: `done` is how many items were, or the answers to all of them.  With `each`,
-- line n goes with item n alone.
function audit.add(done)
  local asked = op.args.audit
  if not asked then
    return
  end
  if type(done) == "number" then
    return done > 0 and audit.write(asked.lines, done)
  end
  local count, chosen = 0, {}
  for n, answer in ipairs(done) do
    if (type(answer) == "table" and answer[1] or answer) == "ok" then
      count = count + 1
      chosen[count] = asked.lines[n]
    end
  end
  if asked.each then
    audit.write(chosen)
  elseif count > 0 then
    audit.write(asked.lines, count)
  end
end

-- lines as they were dumped: {number, JSON}
function audit.restore(seq, line)
  op.lines[#op.lines + 1] = { seq, line }
end

function audit.last_number()
  return number_of(call("XREVRANGE", op.keys.log, "+", "-", "COUNT", 1)[1])
end

writes.writers[#writes.writers + 1] = {
  check = function()
    if op.lines[1] then
      writes.check(op.keys.log, "stream")
    end
  end,
  write = function()
    for _, line in ipairs(op.lines) do
      call("XADD", op.keys.log, text(line[1]) .. "-0", "line", line[2])
    end
    op.lines = {}
  end,
}

return audit
