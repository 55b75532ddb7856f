"""What a person sees: the server's pages in a real browser."""
