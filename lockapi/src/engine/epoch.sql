-- Enters the epoch of the server, on a new connection, and again from time to time.
--
-- Promises: when it returns, the sequences of tokens are beyond what any earlier epoch drew from them, and
-- the row of the epoch says since when. It returns the number of the epoch, which increases with each.
-- Index: the primary key of epoch, a table of one row.
-- Race: sessions that find that the server has begun no epoch meet at that row. A server cannot be promoted
-- while a session writes to it, so a session is in the epoch that it entered until it ends, unless rows are
-- restored or deleted underneath it, which it detects when it enters again.
SELECT lockapi.enter_epoch() AS epoch
