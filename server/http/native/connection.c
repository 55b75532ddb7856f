#define _GNU_SOURCE
#include "connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#ifdef EXTENSION_FAULTS
long front_allocations_left = -1;
#endif

void *front_realloc(void *old, size_t size)
{
#ifdef EXTENSION_FAULTS
    if (front_allocations_left == 0)
        return NULL;
    if (front_allocations_left > 0)
        front_allocations_left--;
#endif
    return realloc(old, size);
}

void release(Buffer *buffer)
{
    free(buffer->data);
    *buffer = (Buffer){0};
}

void drop(Buffer *buffer, size_t size)
{
    buffer->at += size;
    if (buffer->at == buffer->end)
        release(buffer);
}

/* Room for `more` bytes behind what is there; false = no memory. */
static bool reserve(Buffer *buffer, size_t more)
{
    if (buffer->room - buffer->end >= more)
        return true;
    size_t here = held(buffer);
    if (buffer->at > 0) {
        memmove(buffer->data, buffer->data + buffer->at, here);
        buffer->at = 0;
        buffer->end = here;
        if (buffer->room - here >= more)
            return true;
    }
    size_t room = buffer->room * 2 > here + more ? buffer->room * 2 : here + more;
    if (room < PIECE_BYTES)
        room = PIECE_BYTES;
    char *data = front_realloc(buffer->data, room);
    if (data == NULL)
        return false;
    buffer->data = data;
    buffer->room = room;
    return true;
}

bool append(Buffer *buffer, const char *data, size_t size)
{
    if (size == 0)
        return true;
    if (!reserve(buffer, size))
        return false;
    memcpy(buffer->data + buffer->end, data, size);
    buffer->end += size;
    return true;
}

/* How many bytes the connection may hold of what comes. */
static size_t most(const Connection *c)
{
    return c->state == IN_BODY ? c->need : AHEAD_BYTES;
}

uint32_t wanted(const Connection *c)
{
    uint32_t events = c->is_blocked ? EPOLLOUT : 0;
    bool reads = c->state == HANDED ? c->wants_input : c->state != LEAVING && held(&c->in) < most(c);
    return reads && !c->has_ended && !c->closes ? events | EPOLLIN : events;
}

bool receive(Connection *c)
{
    size_t room = most(c), here = held(&c->in);
    if (here >= room)
        return true;
    size_t more = room - here < PIECE_BYTES ? room - here : PIECE_BYTES;
    if (!reserve(&c->in, more))
        return false;
    /* A body is read into all the room that there is for it. */
    size_t space = c->in.room - c->in.end;
    if (space > room - here)
        space = room - here;
    ssize_t got;
    do
        got = recv(c->fd, c->in.data + c->in.end, space, 0);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        c->in.end += (size_t)got;
    else if (held(&c->in) == 0)
        release(&c->in);
    if (got == 0)
        c->has_ended = c->tell_ended = true;
    return got >= 0 || errno == EAGAIN || errno == EWOULDBLOCK;
}

bool transmit(Connection *c)
{
    while (held(&c->out) > 0) {
        ssize_t sent = send(c->fd, c->out.data + c->out.at, held(&c->out), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            c->is_blocked = errno == EAGAIN || errno == EWOULDBLOCK;
            return c->is_blocked;
        }
        c->sent += (uint64_t)sent;
        drop(&c->out, (size_t)sent);
    }
    c->is_blocked = false;
    if (c->ends_output) {
        c->ends_output = false;
        shutdown(c->fd, SHUT_WR);
    }
    return !c->closes;
}
