-- name: now
SELECT extract(epoch FROM clock_timestamp()) * 1000;

-- name: server
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
  pg_is_in_recovery() AS is_standby, current_setting('server_encoding') AS encoding, current_user::text AS username,
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS connections_max,
  -- of what belongs to others a user without rights sees who and where, but not what it is
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
   OR backend_type IS NULL AND datid IS NOT NULL AND usesysid IS NOT NULL) AS connections,
  has_database_privilege(current_database(), 'CREATE') AS may_create, pg_backend_pid() AS pid,
  (SELECT extract(epoch FROM max(clock_timestamp() - xact_start)) FROM pg_stat_activity
   WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend')
  AS oldest_transaction_s;

-- name: settings
SELECT name, setting FROM pg_settings WHERE name IN ('synchronous_commit', 'fsync', 'full_page_writes', 'autovacuum');

-- name: schema
SELECT to_regclass($1) IS NOT NULL, (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace($2));

-- name: has_table
SELECT to_regclass($1) IS NOT NULL;

-- name: tables
SELECT relname::text, n_live_tup, n_dead_tup FROM pg_stat_user_tables
WHERE schemaname = $1::text AND relname::text = ANY($2::text[]) ORDER BY relname;

-- name: refused
SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND CASE c.relkind
  WHEN 'r' THEN NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
                     AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
  WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE')
  ELSE false END
ORDER BY 1;

-- Where a connection leads.  A copy of a database has the numbers of the schema in it, but not the one of itself.
-- name: place
SELECT datname::text, oid, to_regnamespace($1::text)::oid, has_function_privilege('pg_control_system()', 'execute')
FROM pg_database WHERE datname = current_database();

-- The number that a server was given when it was made, and that its replicas share.
-- name: number
SELECT system_identifier FROM pg_control_system();
