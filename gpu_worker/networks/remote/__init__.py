"""Models behind other servers, as networks: rows out over HTTP, numbers or texts back."""
