"""The native front: sockets and ordinary requests in C, everything else as before. See README.md."""
