"""Answers that were given before: asked again with the same input, they need no worker."""
