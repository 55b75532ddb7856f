"""Pages in a browser, made on the server."""
