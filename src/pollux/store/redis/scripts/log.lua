#!lua flags=allow-oom
-- Append audit lines; the script changes nothing else.
return answer_told(true, {})
