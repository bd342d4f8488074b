#!lua flags=no-writes
return answer(get_number("term"))
