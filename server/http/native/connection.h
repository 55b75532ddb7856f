/* One client's socket, and the bytes on their way in and out. No Python here: all of it runs without the GIL. */
#ifndef ML_UDF_CONNECTION_H
#define ML_UDF_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PEER_BYTES = 64,         /* of a client's address as text */
    AHEAD_BYTES = 64 << 10,  /* of later requests that are kept while one is answered; of a reply, see `is_backed_up` */
    PIECE_BYTES = 32 << 10,  /* that a buffer begins with */
};

/* Whose turn it is.
 *   AT_HEAD    a request may come           ANSWERING  Python answers the one that came
 *   IN_BODY    its body is not whole yet    HANDED     Python reads the bytes itself, until it gives them back
 *   LEAVING    what was written is still sent, then it is closed
 *   CLOSED     the socket is; Python is told if it waits for an end, then the slot is free again
 */
typedef enum { AT_HEAD, IN_BODY, ANSWERING, HANDED, LEAVING, CLOSED } State;

typedef struct {
    char *data;
    size_t at, end, room; /* data[at..end) is there */
} Buffer;

/* How far something has come since a time. */
typedef struct {
    double began_s;
    uint64_t done;
    bool runs;
} Pace;

typedef struct Connection {
    int fd;
    uint32_t slot, generation;
    State state;
    bool has_asked;    /* it has sent a whole request */
    bool wants_input;  /* of one that is handed over */
    bool has_ended;    /* the client sends no more */
    bool is_blocked;   /* the socket takes no more for now */
    bool finds_no_room; /* the rest of its body may be too much beside those of others */
    bool closes;       /* once all is sent */
    bool ends_output;  /* once all is sent, with the socket left open for reading */
    bool tell_ended, tell_lost, tell_writable; /* what Python does not know yet */
    bool wants_writable;
    bool is_due, is_dirty;
    uint32_t watched; /* what epoll watches for */
    Buffer in, out;
    size_t head_size, json_size, need; /* of the request whose body comes */
    void *template;         /* of that request; the module's to count */
    uint32_t entry, entry_serial; /* the head that was known last */
    double since_s;
    Pace body, unread;
    uint64_t sent;
    char peer[PEER_BYTES];
    size_t peer_size;
    int port;
    struct Connection *next_due, *next_dirty;
} Connection;

static inline size_t held(const Buffer *buffer) { return buffer->end - buffer->at; }

/* Whether so much waits to be sent that no further request of this client is begun. */
static inline bool is_backed_up(const Connection *c) { return held(&c->out) > AHEAD_BYTES; }

/* Append; false = no memory. */
bool append(Buffer *buffer, const char *data, size_t size);
/* Drop bytes from the front; an empty buffer keeps no memory. */
void drop(Buffer *buffer, size_t size);
void release(Buffer *buffer);

/* What epoll should watch for now. */
uint32_t wanted(const Connection *c);

/* Read what is there, once; false = the connection is over, by an error or for want of memory. */
bool receive(Connection *c);

/* Send what is there; false = the connection is over. */
bool transmit(Connection *c);

/* Memory that tests can make run out. */
void *front_realloc(void *old, size_t size);
#ifdef EXTENSION_FAULTS
extern long front_allocations_left; /* −1 = all succeed */
#endif

#endif
