"""What is served: models, functions, and what changes them."""
