#!lua flags=no-writes
return answer(counts_of(A.v ~= 0 and OWN))
