#!lua flags=no-writes
-- Of how many jobs that were deleted or moved something is left to do.
return answer(call("HLEN", UNFINISHED))
