"""What is served: models, functions and jobs as records."""
