-- How many runs were completed by the nodes on each library.
SELECT n.library, count(*) FILTER (WHERE r.status = 'completed') AS completed
  FROM fleet.node AS n
  LEFT JOIN fleet.run AS r ON r.node = n.name
 GROUP BY n.library
 ORDER BY completed DESC
