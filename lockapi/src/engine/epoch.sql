-- Enters the epoch of the server, on a connection that was just opened, and again after a while.
--
-- Promises: when it returns, the sequences of tokens are beyond what any earlier epoch drew from them, and the
-- row of the epoch says since when. It answers the number of the epoch, which grows with each.
-- Index: the primary key of epoch, a table of one row.
-- Race: sessions that find that the server has begun no epoch meet at that row. A server cannot be promoted
-- while a session writes to it, so a session is in the epoch that it entered until it ends, unless rows come
-- back under it or are deleted, which it finds when it enters again.
SELECT lockapi.enter_epoch() AS epoch
