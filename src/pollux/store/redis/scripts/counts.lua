#!lua flags=no-writes
return answer({
  call("ZCARD", HELD),
  call("ZCARD", LINE_1) + call("ZCARD", LINE_2) + call("ZCARD", LINE_3),
  call("ZCARD", LEASES),
  call("ZCARD", SHELF_DEAD),
  call("XLEN", FEED),
  count_of("ends"),
  call("ZCARD", JOBS),
})
