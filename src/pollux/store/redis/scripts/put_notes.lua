#!lua flags=allow-oom
local written = {}
local answers = write_notes(A.puts, written)
tell_notes(written)
return answer_told(answers, answers)
