INSERT INTO fleet.node AS n (name, library, abandoned, refused)
VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE
   SET abandoned = excluded.abandoned, refused = excluded.refused
