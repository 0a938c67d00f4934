INSERT INTO fleet.node AS n (name, library, contended, abandoned, refused)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE
   SET contended = excluded.contended, abandoned = excluded.abandoned, refused = excluded.refused
