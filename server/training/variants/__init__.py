"""Other ways to run a model version: made, measured beside the original, offered or refused."""
