#!lua flags=allow-oom
check_all()
call("HDEL", NODES, A.id)
return answer(true)
