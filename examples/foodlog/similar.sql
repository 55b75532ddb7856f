-- Photos that look alike: what a network saw in each, as a vector. The same text runs on PostgreSQL and on DuckDB.
-- `circle.py` puts values in the place of the words that begin with a colon.

-- 1. The best model of the job answers what it saw, instead of a name
SELECT to_json(ml_udf.deploy(:function, job => :job, task => 'image-embedding'));

-- 2. Which photos are most like the first one?
WITH seen AS (SELECT image_path, udf_food_features(image_path) AS features
              FROM   labels WHERE split = 'holdout')
SELECT image_path, udf_food_name(image_path) AS food_name
FROM  (SELECT other.image_path
       FROM   seen AS this, seen AS other
       WHERE  this.image_path = (SELECT min(image_path) FROM seen) AND other.image_path <> this.image_path
       ORDER  BY ml_udf.similarity(this.features, other.features) DESC
       LIMIT  5) AS nearest
ORDER  BY image_path;

-- 3. Of photos that no model saw: how often does the most similar lesson show the same dish?
WITH seen AS (SELECT image_path, food_name, split, udf_food_features(image_path) AS features FROM labels)
SELECT count(*) AS photos,
       sum(CASE WHEN same_dish THEN 1 ELSE 0 END) AS same_dish
FROM  (SELECT this.food_name = other.food_name AS same_dish,
              row_number() OVER (PARTITION BY this.image_path
                                 ORDER BY ml_udf.similarity(this.features, other.features) DESC) AS place
       FROM  (SELECT * FROM seen WHERE split = 'holdout' ORDER BY image_path LIMIT 25) AS this
       JOIN   seen AS other ON other.split = 'lesson') AS pairs
WHERE  place = 1;
