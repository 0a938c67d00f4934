-- Records in the audit log the action $2 on $3 in the namespace $1, for the reason $4.
--
-- Promises: one row, with the role and the application of the session. Index: the primary key. Race: none, it only
-- adds a row.
INSERT INTO lockapi.audit (namespace, action, target, reason)
SELECT $1::text, $2::text, $3::text, $4::text
RETURNING true AS recorded
