"""The registry's schema, step by step (Alembic); the server runs it when it starts."""
