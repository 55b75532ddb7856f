"""Training jobs: studies under way on the workers."""
