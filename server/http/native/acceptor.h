/* Clients that come to a listening socket. No Python here: all of it runs without the GIL. */
#ifndef ML_UDF_ACCEPTOR_H
#define ML_UDF_ACCEPTOR_H

#include <stdbool.h>
#include <stddef.h>

#include "connection.h"

typedef struct {
    int fd, port;
    char peer[PEER_BYTES];
    size_t peer_size;
} Client;

/* The next one, with a socket that does not block; false = there is none now, and errno says why. */
bool accept_client(int listening, Client *client);

/* Send it a reply and close; as far as may be, what it has sent meanwhile does not take the reply back. */
void turn_away(const Client *client, const char *reply, size_t size);

#endif
