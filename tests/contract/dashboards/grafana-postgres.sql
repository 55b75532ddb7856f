-- What Grafana's PostgreSQL data source makes of the panels of docs/bi.md, its macros expanded as its source does; not
-- recorded from a running one.

-- $__timeGroupAlias(time, '1d'), $__timeFilter(time), IN ($dish)
SELECT floor(extract(epoch from time)/86400)*86400 AS "time", food_name AS metric, count(*) AS meals
FROM meals
WHERE time BETWEEN '2025-07-01T00:00:00Z' AND '2025-12-31T23:59:59.999Z' AND food_name IN ('laksa','pizza')
GROUP BY 1, 2
ORDER BY 1;

-- $__timeFilter(time): bars
SELECT food_name, count(*) AS meals
FROM meals
WHERE time BETWEEN '2025-07-01T00:00:00Z' AND '2025-12-31T23:59:59.999Z'
GROUP BY food_name
ORDER BY meals DESC;

-- $__timeFrom(), $__timeTo(): a share
SELECT avg((food_name = 'pizza')::int) AS share
FROM meals
WHERE time >= '2025-07-01T00:00:00Z' AND time < '2025-12-31T23:59:59.999Z';

-- $__unixEpochFilter(extract(epoch from time)), $__unixEpochGroup(extract(epoch from time), '1h')
SELECT floor((extract(epoch from time))/3600)*3600 AS "time", count(food_name) AS meals
FROM meals
WHERE extract(epoch from time) >= 1751328000 AND extract(epoch from time) <= 1767225599
GROUP BY 1
ORDER BY 1;

-- the builder
SELECT COUNT(age), food_name FROM meals WHERE (age > 22 AND food_name = 'laksa') GROUP BY food_name ORDER BY food_name ASC LIMIT 50;

-- the values of the variable $dish
SELECT DISTINCT food_name FROM meals ORDER BY 1;

-- the values of a variable, as text and value
SELECT food_name AS "__text", min(food_name) AS "__value" FROM meals WHERE food_name IS NOT NULL GROUP BY food_name;
