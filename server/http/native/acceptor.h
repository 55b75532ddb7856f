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

enum {
    MOST_LEAVING = 256, /* clients that were turned away and whose sockets are open yet, at the most */
};

/* A socket that is closed on bytes that nobody has read, or that are still on their way, is reset, and its client
 * may lose the reply that it has not read. So who is turned away is told at once that nothing more comes, and
 * closed later: after two seconds, or sooner where many come. */
typedef struct {
    struct {
        int fd;
        double since_s;
    } clients[MOST_LEAVING]; /* a ring */
    unsigned first, count;
} Leaving;

/* Send a client a reply, and that it was the last. */
void turn_away(Leaving *leaving, const Client *client, const char *reply, size_t size, double now_s);

/* Close those that were turned away two seconds ago. */
void see_off(Leaving *leaving, double now_s);

/* Close all of them. */
void see_all_off(Leaving *leaving);

#endif
