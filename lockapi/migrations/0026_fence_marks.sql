-- A holder is checked in under the advisory lock, whatever its holders call it.
--
-- A number is the same lock in every namespace, and so is the number that stands for a name. Marks that were made before are not
-- looked at any more, so programs of before and after this version do not refuse each other's former holders.

SET LOCAL search_path = pg_catalog, pg_temp;

COMMENT ON COLUMN lockapi.fence_mark.namespace IS 'Empty: a lock is the same in every namespace.';
COMMENT ON COLUMN lockapi.fence_mark.key IS 'The advisory lock: #number or #class,object.';
