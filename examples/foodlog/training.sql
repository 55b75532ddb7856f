-- From labelled photos to an SQL function. The same text runs on PostgreSQL and on DuckDB: circle.py puts values
-- in the place of the words that begin with a colon.

-- 1. The labelled photos become a dataset: frozen, split, and named by a hash of its content
SELECT ml_udf.create_dataset(:dataset,
                             'SELECT image_path, food_name FROM lessons',
                             target => 'food_name', key => 'image_path',
                             validation => 0.2, test => 0.05);

-- 2. Networks learn from it, with other knobs in every trial
SELECT ml_udf.train(:dataset, models => :models, budget => :budget,
                    policy => 'study', max_epochs => 20, seed => 33);

-- 3. What the job has found answers as an SQL function
SELECT to_json(ml_udf.deploy(:function, job => :job, choose => :choose));
