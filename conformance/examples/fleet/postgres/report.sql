INSERT INTO fleet.node AS n (name, contended, abandoned, refused)
VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE
   SET contended = excluded.contended, abandoned = excluded.abandoned, refused = excluded.refused
