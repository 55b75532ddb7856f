-- Several dishes in one photo: what is where on a tray, learned from trays on which somebody has drawn boxes,
-- [{"label": "laksa", "box": [x0, y0, x1, y1]}, …]. The same text runs on PostgreSQL and on DuckDB: circle.py puts
-- values in the place of the words that begin with a colon.

-- 1. Trays become a dataset: its target are boxes around the dishes
SELECT ml_udf.create_dataset(:dataset,
                             'SELECT image_path, dishes FROM trays WHERE split = ''lesson''',
                             target => 'dishes', key => 'image_path', task => 'object-detection',
                             validation => 0.15, test => 0.1);

-- 2. A detector learns from it: one trial, by the knobs that a study begins with
SELECT ml_udf.train(:dataset, budget => :budget, policy => 'study', max_epochs => 30, max_trials => 1);

-- 3. It answers as an SQL function: jsonb on PostgreSQL, a list of structs on DuckDB
SELECT to_json(ml_udf.deploy(:function, job => :job, choose => :choose));

-- 4. How well does it find them, on trays that it never saw? (1 = every box, and no other)
SELECT metric, "rows" AS trays, round(CAST(value AS numeric), 2) AS value
FROM   ml_udf.evaluate('udf_tray', 'SELECT image_path, dishes FROM trays WHERE split = ''holdout''',
                       target => 'dishes')
ORDER  BY metric;

-- 5. Who takes most? (dishes on trays, found and true)
SELECT name,
       count(*) AS trays,
       sum(found) AS dishes,
       sum(there) AS really
FROM  (SELECT user_id,
              json_array_length(to_json(udf_tray(image_path))) AS found,
              json_array_length(CAST(dishes AS json)) AS there
       FROM   trays) AS counted
JOIN   users USING (user_id)
GROUP  BY user_id, name
ORDER  BY dishes DESC, user_id
LIMIT  5;

-- 6. On how many trays that it never saw is there a laksa?
SELECT count(*) AS trays,
       sum(CASE WHEN CAST(to_json(udf_tray(image_path)) AS text) LIKE '%"laksa"%' THEN 1 ELSE 0 END) AS laksa,
       sum(CASE WHEN dishes LIKE '%"laksa"%' THEN 1 ELSE 0 END) AS really
FROM   trays
WHERE  split = 'holdout';

-- 7. One function of two: each dish that is found is cut out, and named by the function that names photos of meals
SELECT ml_udf.create_pipeline('udf_tray_dishes', '["udf_tray", {"crop": {"margin": 0.1}}, "udf_food_name"]') > 0 AS made;

-- 8. Which dishes do the two of them see on those trays? Nothing but its value has left the server
SELECT count(*) AS trays,
       sum(json_array_length(dishes)) AS dishes,
       sum(CASE WHEN replace(CAST(dishes AS text), ' ', '') LIKE '%"answer":{"label":"laksa"%' THEN 1 ELSE 0 END) AS laksa
FROM  (SELECT to_json(udf_tray_dishes(image_path)) AS dishes FROM trays WHERE split = 'holdout') AS seen;
