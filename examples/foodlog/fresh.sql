-- A search among photos that stays fresh: what a network saw in each is kept beside it, and follows the album. On PostgreSQL,
-- while `ml-udf score --watch` runs (freshness.py).

-- 1. An album
CREATE TABLE album (image_path text PRIMARY KEY);

-- 2. What is seen in its photos is kept in a table of its own, from now on
CALL ml_udf.score_table('album', 'udf_food_features', 'image_path', result_table => 'looks', watch => true);

-- 3. Photos come
INSERT INTO album SELECT image_path FROM labels WHERE split = 'holdout' ORDER BY image_path LIMIT 50;

-- 4. Which photos of the album are most like the first one?
SELECT other.image_path, udf_food_name(other.image_path) AS food_name
FROM   looks AS this, looks AS other
WHERE  this.image_path = (SELECT min(image_path) FROM album) AND other.image_path <> this.image_path
ORDER  BY ml_udf.similarity(this.value, other.value) DESC, other.image_path
LIMIT  3;

-- 5. Others come, and some go
WITH gone AS (DELETE FROM album WHERE image_path IN (SELECT image_path FROM album ORDER BY image_path DESC LIMIT 25))
INSERT INTO album SELECT image_path FROM labels WHERE split = 'holdout' ORDER BY image_path OFFSET 50 LIMIT 50;

-- 6. Does each photo of the album have its vector, and no other?
SELECT count(*) AS photos, count(look.value) AS seen, count(*) - count(photo.image_path) AS left_over
FROM   album AS photo FULL JOIN looks AS look USING (image_path);
