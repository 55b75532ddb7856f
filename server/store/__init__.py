"""The registry, and the files of the home folder: models, functions, deployments, training."""
