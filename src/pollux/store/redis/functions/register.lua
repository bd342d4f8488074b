-- Registration of functions: what each may do, and what it answers.
local register = {}

local function add(name, flags, callback)
  redis.register_function({ function_name = LIBRARY .. "_" .. name, flags = flags, callback = callback })
end

-- Its value goes to the caller packed.
function register.read(name, body)
  add(name, { "no-writes" }, function(keys, argv)
    op.begin(keys[1], argv[1])
    return cmsgpack.pack(body())
  end)
end

-- Its value, a list of texts, goes as it is: texts that are packed within texts cost.
function register.read_parts(name, body)
  add(name, { "no-writes" }, function(keys, argv)
    op.begin(keys[1], argv[1])
    return body()
  end)
end

-- What only records may run when the memory is full (`allow-oom`); what makes something new may not.
function register.write(name, flag, body)
  add(name, flag ~= "" and { flag } or {}, function(keys, argv)
    op.begin(keys[1], argv[1])
    return writes.run(body)
  end)
end

return register
