#!lua flags=allow-oom
-- Take or renew the leadership.  The end is a field that is compared, never a key that expires: terms only rise.
-- On another server than the one that gave the last term away, terms may have been lost that somebody still believes
-- in: none of them is given away again.
local TERMS_LOST_MAX = 1000
local row = call("HMGET", META, "term", "holder", "term_until", "term_ttl", "term_home")
local term, holder = tonumber(row[1] or 0), row[2] or ""
local home = call("HGET", HOME, "home") or ""
if row[5] and row[5] ~= home then
  term, holder = math.max(term, A.seen) + TERMS_LOST_MAX, ""
elseif A.seen > term then
  term, holder = A.seen, ""
end
local ends, ttl = tonumber(row[3] or 0), tonumber(row[4] or 0)
ends = math.min(ends, now + ttl) -- the clock came back: nobody leads longer than it was promised
local is_vacant = holder == "" or ends <= now
if is_vacant or holder == A.node then
  term, holder, ends, ttl = term + (is_vacant and 1 or 0), A.node, now + A.ttl_ms, A.ttl_ms
end
use(OWN)
check_all()
call("HSET", META, "term", term, "holder", holder, "term_until", ends, "term_ttl", ttl, "term_home", home)
return answer({ term, holder, ends, now })
