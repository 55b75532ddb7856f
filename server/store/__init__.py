"""The registry: models, functions, deployments."""
