"""Selection policies, one a file; pure."""
