-- name: last
SELECT seq, chain FROM log ORDER BY seq DESC LIMIT 1;

-- name: add
INSERT INTO log (seq, at_ms, actor, action, subject, detail, count, chain) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: read
SELECT at_ms, actor, action, subject, detail, count, seq, chain FROM log WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: before
SELECT at_ms, actor, action, subject, detail, count, seq, chain FROM log WHERE seq < ? ORDER BY seq DESC LIMIT ?;
