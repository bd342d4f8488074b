#!lua flags=no-writes
return answer({
  get_number("held"),
  call("ZCARD", LINE_1) + call("ZCARD", LINE_2) + call("ZCARD", LINE_3),
  call("ZCARD", LEASES),
  call("ZCARD", SHELF_DEAD),
  call("XLEN", FEED),
  get_number("ends"),
  call("ZCARD", JOBS),
})
