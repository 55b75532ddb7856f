-- Questions to the food log. Every statement runs unchanged on PostgreSQL and on DuckDB, and none knows
-- what a photo shows: that is udf_food_name's answer.

-- 1. What do users over 30 eat? (Rafiki, Section 8)
SELECT UDF_FOOD_NAME(image_path) AS food_name,
       count(*) AS meals
FROM   foodlog
WHERE  age > 30
GROUP  BY food_name
ORDER  BY meals DESC, food_name;

-- 2. And those over 52? (Rafiki, Section 8)
SELECT udf_food_name(image_path) AS name,
       count(*) AS meals
FROM   foodlog
WHERE  age > 52
GROUP  BY name
ORDER  BY meals DESC, name;

-- 3. Where is laksa eaten in the last quarter? (a filter on the predicted value)
SELECT location,
       count(*) AS bowls,
       min(time) AS first_bowl
FROM   foodlog
WHERE  time >= '2025-10'
  AND  udf_food_name(image_path) = 'laksa'
GROUP  BY location
ORDER  BY bowls DESC, location
LIMIT  6;

-- 4. What is each country's favourite in December? (a join with users)
SELECT country, food_name, meals
FROM  (SELECT country,
              food_name,
              count(*) AS meals,
              row_number() OVER (PARTITION BY country ORDER BY count(*) DESC, food_name) AS place
       FROM  (SELECT u.country,
                     udf_food_name(f.image_path) AS food_name
              FROM   foodlog f
              JOIN   users u ON u.user_id = f.user_id
              WHERE  f.time >= '2025-12') AS eaten
       GROUP  BY country, food_name) AS ranked
WHERE  place = 1
ORDER  BY meals DESC, country;

-- 5. Is salad spreading among the offices of Raffles Place? (a trend over time)
SELECT month,
       count(*) AS meals,
       count(*) FILTER (WHERE food_name = 'salad') AS salads,
       round(100.0 * count(*) FILTER (WHERE food_name = 'salad') / count(*), 1) AS percent
FROM  (SELECT substr(time, 1, 7) AS month,
              udf_food_name(image_path) AS food_name
       FROM   foodlog
       WHERE  location = 'Raffles Place') AS named
GROUP  BY month
ORDER  BY month;
