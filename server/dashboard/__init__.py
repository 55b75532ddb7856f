"""The pages that the server shows in a browser."""
