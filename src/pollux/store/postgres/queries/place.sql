-- Where a connection leads.  A copy of a database has the numbers of the schema in it, but not the one of itself.
-- name: place
SELECT datname::text, oid, to_regnamespace($1::text)::oid, has_function_privilege('pg_control_system()', 'execute')
FROM pg_database WHERE datname = current_database();

-- The number that a server was given when it was made, and that its replicas share.
-- name: server
SELECT system_identifier FROM pg_control_system();
