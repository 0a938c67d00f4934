-- Reads what operators did, the latest first: in the namespace $1 or (NULL) in all.
--
-- Promises: at most $2 entries, of the latest 20,000 of all namespaces, so that others' entries do not make it long.
-- Index: the primary key of audit. Race: none, nothing is changed in it.
SELECT a.id, (extract(epoch FROM a.at) * 1000000)::int8 AS at, a.by_user, a.application, a.namespace, a.action,
       a.target, a.reason
  FROM (SELECT e.* FROM lockapi.audit AS e ORDER BY e.id DESC LIMIT 20000) AS a
 WHERE $1::text IS NULL OR a.namespace = $1::text
 ORDER BY a.id DESC
 LIMIT $2::int8
