-- A number instead of a name: how many calories a meal has, learned from meals that were weighed. The same text
-- runs on PostgreSQL and on DuckDB: circle.py puts values in the place of the words that begin with a colon.

-- 1. Weighed meals become a dataset: its target is a number, so that a regression is learned
SELECT ml_udf.create_dataset(:dataset,
                             'SELECT meal_id, food_name, portion_g, cooked, calories FROM weighed
                              WHERE split = ''lesson''',
                             target => 'calories', key => 'meal_id', task => 'tabular-regression');

-- 2. Models learn from it
SELECT ml_udf.train(:dataset, budget => :budget);

-- 3. What the job has found answers as an SQL function, of as many arguments as the rows had columns
SELECT to_json(ml_udf.deploy(:function, job => :job, choose => :choose));

-- 4. How far is it off, on weighed meals that it never saw? Beside it, the mean of all meals
SELECT count(*) AS meals,
       round(avg(abs(udf_calories(food_name, portion_g, cooked) - calories))) AS off_by,
       round(avg(abs((SELECT avg(calories) FROM weighed) - calories))) AS mean_off_by
FROM   weighed
WHERE  split = 'holdout';

-- 5. Who eats most? (one function's answers are another one's input)
SELECT eaters,
       count(*) AS meals,
       round(avg(udf_calories(food_name, portion_g, 'hawker'))) AS calories
FROM  (SELECT CASE WHEN f.age < 30 THEN 'under 30' WHEN f.age < 53 THEN '30 to 52' ELSE 'over 52' END AS eaters,
              udf_food_name(f.image_path) AS food_name,
              p.portion_g
       FROM   foodlog f
       JOIN   portions p ON p.image_path = f.image_path) AS eaten
GROUP  BY eaters
ORDER  BY eaters;
