-- The food log. The same text makes the tables on PostgreSQL and on DuckDB.

-- Rafiki, Figure 17: one row a meal; the photo lies in a file below the inference host's media root.
CREATE TABLE foodlog (
  user_id    integer,
  age        integer NOT NULL,
  location   text    NOT NULL,
  time       text    NOT NULL,
  image_path text    NOT NULL,
  PRIMARY KEY (user_id, time)
);

CREATE TABLE users (
  user_id integer PRIMARY KEY,
  name    text NOT NULL,
  country text NOT NULL
);

-- What is on the photos: people said so of the lessons, the others only serve to check answers.
-- No query of queries.sql reads it.
CREATE TABLE labels (
  image_path text PRIMARY KEY,
  food_name  text NOT NULL,
  split      text NOT NULL CHECK (split IN ('lesson', 'holdout'))
);

-- All that training reads, and all that its role may read.
CREATE VIEW lessons AS
  SELECT image_path, food_name FROM labels WHERE split = 'lesson';

-- Meals that a dietician has weighed and measured; of some, nobody has noted the weight.
CREATE TABLE weighed (
  meal_id   integer PRIMARY KEY,
  food_name text    NOT NULL,
  portion_g integer,
  cooked    text    NOT NULL,
  calories  double precision NOT NULL,
  split     text    NOT NULL CHECK (split IN ('lesson', 'holdout'))
);

-- How much was on the plate of a photo, where there was a scale.
CREATE TABLE portions (
  image_path text PRIMARY KEY,
  portion_g  integer
);

-- Trays with several dishes: where each of them is, as somebody has drawn it, in pixels of the photo.
CREATE TABLE trays (
  image_path text PRIMARY KEY,
  user_id    integer NOT NULL,
  dishes     text    NOT NULL,
  split      text    NOT NULL CHECK (split IN ('lesson', 'holdout'))
);
