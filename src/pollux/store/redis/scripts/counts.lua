#!lua flags=no-writes
return answer(counts_of(not A.all_versions and OWN))
