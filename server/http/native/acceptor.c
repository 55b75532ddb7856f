#define _GNU_SOURCE
#include "acceptor.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    DROPPED_BYTES = 256 << 10, /* of a client that is turned away, at the most, twice */
};

#define LINGER_S 2.0

bool accept_client(int listening, Client *client)
{
    struct sockaddr_storage address;
    socklen_t size;
    do {
        size = sizeof address;
        client->fd = accept4(listening, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } while (client->fd < 0 && errno == EINTR);
    if (client->fd < 0)
        return false;
    client->port = 0;
    client->peer_size = 0;
    if (address.ss_family == AF_INET || address.ss_family == AF_INET6) {
        char port[8];
        int one = 1;
        setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (getnameinfo((struct sockaddr *)&address, size, client->peer, sizeof client->peer, port, sizeof port,
                        NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
            client->peer_size = strlen(client->peer);
            client->port = atoi(port);
        }
    }
    return true;
}

static void drop_input(int fd)
{
    ssize_t dropped;
    size_t all = 0;
    do {
        dropped = recv(fd, NULL, DROPPED_BYTES, MSG_TRUNC); /* of TCP: nothing is copied */
        all += dropped > 0 ? (size_t)dropped : 0;
    } while ((dropped > 0 && all < DROPPED_BYTES) || (dropped < 0 && errno == EINTR));
}

static void close_first(Leaving *leaving)
{
    int fd = leaving->clients[leaving->first].fd;
    leaving->first = (leaving->first + 1) % MOST_LEAVING;
    leaving->count--;
    drop_input(fd);
    close(fd);
}

void turn_away(Leaving *leaving, const Client *client, const char *reply, size_t size, double now_s)
{
    if (leaving->count == MOST_LEAVING)
        close_first(leaving);
    drop_input(client->fd);
    send(client->fd, reply, size, MSG_NOSIGNAL);
    shutdown(client->fd, SHUT_WR);
    unsigned place = (leaving->first + leaving->count++) % MOST_LEAVING;
    leaving->clients[place].fd = client->fd;
    leaving->clients[place].since_s = now_s;
}

void see_off(Leaving *leaving, double now_s)
{
    while (leaving->count > 0 && now_s - leaving->clients[leaving->first].since_s >= LINGER_S)
        close_first(leaving);
}

void see_all_off(Leaving *leaving)
{
    while (leaving->count > 0)
        close_first(leaving);
}
