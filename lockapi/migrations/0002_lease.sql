-- Leases: one row a slot of a key. Slot 0 is the plain lease, 1 and more are the permits of a
-- semaphore, -1 is the leader of an election, -2 a mutex. The row stays when the lease ends, because
-- the next holder's token has to be larger; rows that ended long ago are swept.
--
-- No index mentions expires_at or fence: a renewal then updates the row in place (HOT). The slot is
-- small, and no minimum hold is stored as NULL, so that the slot makes no row larger. The primary key
-- begins with the key: the array of a batch then is a condition of the index, whatever statistics say.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.lease (
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    slot        int2             NOT NULL,
    fence       int8             NOT NULL,
    acquisition int8             NOT NULL,
    owner       text             NOT NULL,
    data        text             NOT NULL,
    acquired_at timestamptz      NOT NULL,
    renewed_at  timestamptz      NOT NULL,
    held_until  timestamptz,
    expires_at  timestamptz      NOT NULL,
    released_at timestamptz,
    PRIMARY KEY (key, namespace, slot)
) WITH (fillfactor = 50);

COMMENT ON TABLE lockapi.lease IS 'Expiring locks, one row a slot of a key; the row outlives the lease.';
COMMENT ON COLUMN lockapi.lease.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.lease.key IS 'Key of the lease: a name, #number or #class,object.';
COMMENT ON COLUMN lockapi.lease.slot IS '0: the lease; 1 and more: permits of the semaphore; -1: the leader; -2: the mutex of this key.';
COMMENT ON COLUMN lockapi.lease.fence IS 'Fencing token of the latest holder.';
COMMENT ON COLUMN lockapi.lease.acquisition IS 'Random number of the acquisition; a repeated request is recognised by it.';
COMMENT ON COLUMN lockapi.lease.owner IS 'Who holds it, in the words of the holder.';
COMMENT ON COLUMN lockapi.lease.data IS 'What the holder left for readers.';
COMMENT ON COLUMN lockapi.lease.acquired_at IS 'When the latest holder got it.';
COMMENT ON COLUMN lockapi.lease.renewed_at IS 'When the latest holder last renewed it.';
COMMENT ON COLUMN lockapi.lease.held_until IS 'Not given to anybody else before this time, even when released earlier; NULL without a minimum hold.';
COMMENT ON COLUMN lockapi.lease.expires_at IS 'Free from this time on.';
COMMENT ON COLUMN lockapi.lease.released_at IS 'When the latest holder released it; NULL while held or when it expired.';

CREATE VIEW lockapi.lease_view AS
    SELECT namespace, key, slot, owner, data, fence,
           expires_at > clock_timestamp() AND released_at IS NULL AS held,
           CASE WHEN expires_at <= clock_timestamp() THEN 'free'
                WHEN released_at IS NULL THEN 'held' ELSE 'kept' END AS state,
           acquired_at, renewed_at, expires_at, released_at,
           clock_timestamp() - acquired_at AS age,
           expires_at - clock_timestamp() AS expires_in
      FROM lockapi.lease;

COMMENT ON VIEW lockapi.lease_view IS 'Leases as a person wants to read them: who holds what, since when, for how long still. The state is held, kept (released, and kept from others until its minimum hold ends) or free.';
