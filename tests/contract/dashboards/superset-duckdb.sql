-- What Superset 6.1.0 sends to DuckDB 2.0.0 through duckdb-engine 0.17.0: recorded from a running one; values of filters
-- are others, and the filter on NULL is written after the rest. The dataset is a query: each chart has it inside.

-- bars by dish
SELECT food_name AS food_name, COUNT(*) AS count 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table GROUP BY food_name ORDER BY count DESC 
 LIMIT 1000;

-- filters on columns
SELECT food_name AS food_name, COUNT(*) AS count 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
WHERE age > 30 AND location IN ('Katong', 'Bedok') GROUP BY food_name ORDER BY count DESC 
 LIMIT 1000;

-- a filter on the answer
SELECT location AS location, COUNT(*) AS count 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
WHERE food_name IN ('laksa') GROUP BY location ORDER BY count DESC 
 LIMIT 1000;

-- an answer that is like, and not null
SELECT food_name AS food_name, COUNT(*) AS count 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
WHERE food_name ILIKE '%sa%' AND food_name IS NOT NULL GROUP BY food_name 
 LIMIT 1000;

-- answers that are null
SELECT location AS location, COUNT(*) AS count 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
WHERE food_name IS NULL GROUP BY location ORDER BY count DESC 
 LIMIT 1000;

-- lines by month of the most frequent dishes
SELECT DATE_TRUNC('month', time) AS time, food_name AS food_name, COUNT(*) AS count 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table JOIN (SELECT food_name AS food_name__, COUNT(*) AS mme_inner__ 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
WHERE time >= '2025-07-01 00:00:00.000000' AND time < '2026-01-01 00:00:00.000000' GROUP BY food_name ORDER BY COUNT(*) DESC 
 LIMIT 3) AS series_limit ON food_name = food_name__ 
WHERE time >= '2025-07-01 00:00:00.000000' AND time < '2026-01-01 00:00:00.000000' GROUP BY DATE_TRUNC('month', time), food_name 
 LIMIT 10000;

-- a share by week
SELECT DATE_TRUNC('week', time) AS time, AVG(CASE WHEN food_name = 'pizza' THEN 1.0 ELSE 0 END) AS pizzas 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
WHERE time >= '2025-12-01 00:00:00.000000' AND time < '2026-01-01 00:00:00.000000' GROUP BY DATE_TRUNC('week', time) 
 LIMIT 1000;

-- the values of a filter
SELECT food_name AS food_name 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table GROUP BY food_name ORDER BY food_name ASC 
 LIMIT 1000;

-- the values of a filter, as they are typed
SELECT food_name AS food_name 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
WHERE food_name ILIKE '%la%' GROUP BY food_name 
 LIMIT 1000;

-- a condition on the metric
SELECT food_name AS food_name, COUNT(*) AS count 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
WHERE (age > 22) GROUP BY food_name 
HAVING (COUNT(*) > 10) 
 LIMIT 1000;

-- a big number
SELECT COUNT(*) AS count, count(DISTINCT food_name) AS foods 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
 LIMIT 1000;

-- raw records
SELECT time AS time, location AS location, food_name AS food_name 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table ORDER BY time DESC 
 LIMIT 100;

-- an expression over the answer
SELECT UPPER(food_name) AS "FOOD", COUNT(*) AS count 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table GROUP BY UPPER(food_name) 
 LIMIT 1000;

-- drill to detail
SELECT time AS time, location AS location, age AS age, food_name AS food_name 
FROM (SELECT f.time::timestamp AS time, location, age, udf_food_name(image_path) AS food_name FROM foodlog f
) AS virtual_table 
WHERE food_name = 'laksa' ORDER BY time ASC 
 LIMIT 10;

-- SQL Lab
SELECT
  UDF_FOOD_NAME(image_path) AS food,
  COUNT(*)
FROM foodlog
WHERE
  age > 22
GROUP BY
  food
LIMIT 1001;
