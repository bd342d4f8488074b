#!lua flags=no-writes
return add_parts({}, A.ids)
