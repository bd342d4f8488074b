#!lua flags=allow-oom
call("HDEL", NODES, A.id)
return answer(true)
