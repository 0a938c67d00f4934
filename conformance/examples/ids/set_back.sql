-- What was written by a clock that is set back afterwards is later by that clock: $1 is how far, in
-- milliseconds.
UPDATE lockapi.id_worker
   SET floor = floor + $1::int8,
       expires_at = expires_at + $1::int8 * interval '1 millisecond'
