#!lua flags=no-writes
-- The number of deleted or moved jobs whose runs are not all done.
return answer(call("HLEN", UNFINISHED))
