-- The shape of what Metabase sends to PostgreSQL, after its documentation and reports of its users; not recorded.

-- bars by dish
-- Metabase:: userID: 1 queryType: MBQL queryHash: 0
SELECT "public"."meals"."food_name" AS "food_name", COUNT(*) AS "count"
FROM "public"."meals"
GROUP BY "public"."meals"."food_name"
ORDER BY "count" DESC, "public"."meals"."food_name" ASC;

-- filters on columns and on the answer
SELECT COUNT(*) AS "count"
FROM "public"."meals"
WHERE ("public"."meals"."age" >= 22)
  AND (("public"."meals"."food_name" = 'laksa') OR ("public"."meals"."food_name" = 'satay'))
  AND (NOT (LOWER("public"."meals"."location") LIKE '%tong%') OR "public"."meals"."location" IS NULL);

-- by month
SELECT CAST(DATE_TRUNC('month', "public"."meals"."time") AS date) AS "time",
       "public"."meals"."food_name" AS "food_name", COUNT(*) AS "count"
FROM "public"."meals"
WHERE "public"."meals"."time" >= timestamp '2025-07-01 00:00:00.000'
  AND "public"."meals"."time" < timestamp '2026-01-01 00:00:00.000'
GROUP BY CAST(DATE_TRUNC('month', "public"."meals"."time") AS date), "public"."meals"."food_name"
ORDER BY CAST(DATE_TRUNC('month', "public"."meals"."time") AS date) ASC, "public"."meals"."food_name" ASC;

-- by week, which begins on a Sunday
SELECT (CAST(DATE_TRUNC('week', CAST(("public"."meals"."time" + INTERVAL '1 day') AS timestamp)) AS timestamp) + INTERVAL '-1 day') AS "time",
       SUM(CASE WHEN "public"."meals"."food_name" = 'pizza' THEN 1 ELSE 0.0 END) AS "pizzas"
FROM "public"."meals"
GROUP BY (CAST(DATE_TRUNC('week', CAST(("public"."meals"."time" + INTERVAL '1 day') AS timestamp)) AS timestamp) + INTERVAL '-1 day')
ORDER BY (CAST(DATE_TRUNC('week', CAST(("public"."meals"."time" + INTERVAL '1 day') AS timestamp)) AS timestamp) + INTERVAL '-1 day') ASC;

-- a question about a model
SELECT "source"."food_name" AS "food_name", COUNT(*) AS "count"
FROM (SELECT location, age, udf_food_name(image_path) AS food_name FROM foodlog) AS "source"
WHERE "source"."age" > 22
GROUP BY "source"."food_name"
ORDER BY "source"."food_name" ASC
LIMIT 1048575;

-- a question about a question
SELECT "source"."food_name" AS "food_name", "source"."count" AS "count"
FROM (SELECT "public"."meals"."food_name" AS "food_name", COUNT(*) AS "count" FROM "public"."meals"
      GROUP BY "public"."meals"."food_name" ORDER BY "public"."meals"."food_name" ASC) AS "source"
WHERE "source"."count" > 10
LIMIT 1048575;

-- rows
SELECT "public"."meals"."time" AS "time", "public"."meals"."location" AS "location",
       "public"."meals"."age" AS "age", "public"."meals"."food_name" AS "food_name"
FROM "public"."meals"
ORDER BY "public"."meals"."time" ASC
LIMIT 2000;

-- a scan of a filter's values
SELECT "public"."meals"."food_name" AS "food_name"
FROM "public"."meals"
GROUP BY "public"."meals"."food_name"
ORDER BY "public"."meals"."food_name" ASC
LIMIT 1000;

-- a fingerprint
SELECT SUBSTRING("public"."meals"."location", 1, 1234) AS "location",
       SUBSTRING("public"."meals"."food_name", 1, 1234) AS "food_name", "public"."meals"."age" AS "age"
FROM "public"."meals"
LIMIT 10000;

-- distinct values
SELECT COUNT(DISTINCT "public"."meals"."food_name") AS "count" FROM "public"."meals";
