-- SHA-256 (FIPS 180-4), as hexadecimal digits: the server offers SHA-1 alone.
--
-- The bit library works on signed words of 32 bits.  A sum of a few of them is exact, and `tobit` takes it modulo 2^32.
local BLOCK = 64 -- bytes
local START, CONSTANTS -- made when they are first needed

-- the first 32 bits of the fractional parts of a root of each of the first primes: of square roots, and of cube roots
local function fractions(count, root)
  local words, number = {}, 2
  while #words < count do
    local is_prime = true
    for divisor = 2, math.floor(math.sqrt(number)) do
      is_prime = is_prime and number % divisor ~= 0
    end
    if is_prime then
      local value = number ^ root
      words[#words + 1] = bit.tobit(math.floor((value - math.floor(value)) * 2 ^ 32))
    end
    number = number + 1
  end
  return words
end

local function padded(message)
  local size = #message
  local zeros = (BLOCK - (size + 9) % BLOCK) % BLOCK
  local bits = { 0, 0, 0, 0, 0, 0, 0, 0 }
  local left = size * 8
  for n = 8, 1, -1 do
    bits[n] = left % 256
    left = math.floor(left / 256)
  end
  return message .. "\128" .. string.rep("\0", zeros) .. string.char(unpack(bits))
end

local function schedule(message, first)
  local words, bor, bxor, ror, rshift, lshift = {}, bit.bor, bit.bxor, bit.ror, bit.rshift, bit.lshift
  for n = 1, 16 do
    local one, two, three, four = string.byte(message, first + 4 * n - 4, first + 4 * n - 1)
    words[n] = bor(lshift(one, 24), lshift(two, 16), lshift(three, 8), four)
  end
  for n = 17, 64 do
    local early, late = words[n - 15], words[n - 2]
    local sum_0 = bxor(ror(early, 7), ror(early, 18), rshift(early, 3))
    local sum_1 = bxor(ror(late, 17), ror(late, 19), rshift(late, 10))
    words[n] = bit.tobit(words[n - 16] + sum_0 + words[n - 7] + sum_1)
  end
  return words
end

local function add_block(state, message, first)
  local words, band, bxor, bnot, ror, tobit = schedule(message, first), bit.band, bit.bxor, bit.bnot, bit.ror, bit.tobit
  local a, b, c, d, e, f, g, h = unpack(state)
  for n = 1, 64 do
    local sum_1 = bxor(ror(e, 6), ror(e, 11), ror(e, 25))
    local chosen = bxor(band(e, f), band(bnot(e), g))
    local one = h + sum_1 + chosen + CONSTANTS[n] + words[n]
    local sum_0 = bxor(ror(a, 2), ror(a, 13), ror(a, 22))
    local majority = bxor(band(a, b), band(a, c), band(b, c))
    h, g, f, e, d, c, b, a = g, f, e, tobit(d + one), c, b, a, tobit(one + sum_0 + majority)
  end
  for n, value in ipairs({ a, b, c, d, e, f, g, h }) do
    state[n] = tobit(state[n] + value)
  end
end

local function sha256(message)
  if not START then
    START, CONSTANTS = fractions(8, 1 / 2), fractions(64, 1 / 3)
  end
  local whole, state, digits = padded(message), { unpack(START) }, {}
  for first = 1, #whole, BLOCK do
    add_block(state, whole, first)
  end
  for n = 1, 8 do
    digits[n] = bit.tohex(state[n])
  end
  return table.concat(digits)
end

return sha256
