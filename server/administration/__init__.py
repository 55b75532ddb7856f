"""What admins do with a server that runs: tokens, and the trail of who changed what."""
