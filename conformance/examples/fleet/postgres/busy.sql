-- Nodes that run something, the busiest first.
SELECT node, array_agg(task ORDER BY task) AS tasks
  FROM fleet.run
 WHERE status = 'running'
 GROUP BY node
 ORDER BY count(*) DESC, node
