"""The worker protocol: messages and how they travel; what a server may know of a worker."""
