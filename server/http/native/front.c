/* The module `_front`: connections whose ordinary requests never become bytes that Python has to look at.
 *
 * One thread owns a Front: the event loop's. The GIL is released around its system calls, and meanwhile nobody
 * else may call it (`busy`). Python is told what happened by the list that `turn` returns; nothing calls back.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "acceptor.h"
#include "connection.h"
#include "recogniser.h"

enum {
    EVENTS = 256,            /* that one turn looks at */
    FIRST_LET_IN = 4,        /* in the first turn after a door was shut, */
    MOST_LET_IN = 64,        /* and in the last before it counts as open */
    MOST_SLOTS = 1 << 20,
    MOST_HEAD_BYTES = 4096,  /* of a head, or of JSON, that is known by heart */
    MOST_SHAPED_BYTES = 256 << 10, /* of a body whose JSON is recognised; reading a larger one takes Python longer */
    WAKE = UINT32_MAX,
};

/* What `turn` tells. */
enum { REQUEST, BYTES, ENDED, LOST, WRITABLE, SLOW, UNSHAPED, SHAPED, REFUSED };

/* Requests that get a reply at once, and Python is told their number alone: those of one head, and where their JSON
 * is known, of that JSON with these numbers, their size left aside. Until a time that is soon; then a few a turn are let
 * in, and twice as many the next turn, unless Python shuts it again. */
typedef struct {
    double until_s;
    uint64_t turn;          /* in which the last were let in */
    uint32_t let_in, width; /* how many were in that turn, of how many that may */
    PyObject *shape, *counter; /* the template of their JSON, NULL = there is none; what Python counts them by */
    uint64_t values[NUMBERS];  /* by name */
    char *reply;
    size_t size;
    uint64_t refused; /* that Python was not told of */
    bool is_touched;
} Door;

/* A head that Python has read: what it is but for the digits of its length, and what Python knows of it. */
typedef struct Known {
    PyObject *template; /* NULL = the place is free */
    char *head;
    size_t size;
    Length length;
    uint64_t hash, used, limit;
    size_t json_size; /* of the bodies; 0 = they are not looked into */
    uint32_t serial;
    char peer[PEER_BYTES];
    size_t peer_size;
    Door door;
    struct Known *next_touched;
} Known;

/* A JSON part that Python has read, but for its numbers. */
typedef struct {
    PyObject *template; /* NULL = the place is free; None = Python reads each one */
    char *json;
    Shape shape; /* its pieces lie in `json` */
    uint64_t hash, used;
} KnownShape;

typedef struct {
    double head_s, idle_s, slow_s, least_bytes_per_s;
} Times;

typedef struct {
    PyObject_HEAD
    int epoll, wake;
    bool busy, is_awake, is_closing;
    Connection **slots;
    uint32_t slot_count, *free_slots, free_count;
    Connection *due, **due_end, *dirty;
    Known *known, *touched; /* doors at which somebody was refused in this turn */
    KnownShape *shapes;
    uint32_t known_count, next_serial; /* as many heads as shapes */
    uint64_t turns;
    uint64_t clock; /* of uses, to find the head that was used last */
    uint64_t most_held_bytes, held_bytes, held_elsewhere; /* of bodies that are not whole */
    uint64_t ordinary_bytes;
    Times times;
    Leaving leaving;
    uint64_t open, requests, handed;
} Front;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t id_of(const Connection *c) { return (uint64_t)c->generation << 32 | c->slot; }

static Connection *find(const Front *front, uint64_t id)
{
    uint32_t slot = (uint32_t)id;
    Connection *c = slot < front->slot_count ? front->slots[slot] : NULL;
    return c != NULL && c->generation == (uint32_t)(id >> 32) ? c : NULL;
}

/* ── work that waits ──────────────────────────────────────────────────────────────────────────────── */

/* The epoll descriptor becomes readable, so that the loop calls `turn` also where no socket has anything. */
static void wake(Front *front)
{
    if (!front->is_awake) {
        uint64_t one = 1;
        front->is_awake = write(front->wake, &one, sizeof one) == sizeof one || errno == EAGAIN;
    }
}

static void put_due(Front *front, Connection *c)
{
    if (c->is_due)
        return;
    c->is_due = true;
    c->next_due = NULL;
    *front->due_end = c;
    front->due_end = &c->next_due;
}

static Connection *take_due(Front *front)
{
    Connection *c = front->due;
    if (c != NULL) {
        front->due = c->next_due;
        if (front->due == NULL)
            front->due_end = &front->due;
        c->is_due = false;
    }
    return c;
}

static void put_dirty(Front *front, Connection *c)
{
    if (!c->is_dirty) {
        c->is_dirty = true;
        c->next_dirty = front->dirty;
        front->dirty = c;
    }
}

static void watch(Front *front, Connection *c)
{
    uint32_t events = wanted(c);
    if (c->fd >= 0 && events != c->watched) {
        struct epoll_event event = {.events = events, .data.u64 = id_of(c)};
        if (epoll_ctl(front->epoll, EPOLL_CTL_MOD, c->fd, &event) == 0)
            c->watched = events;
    }
}

/* ── the end of a connection ──────────────────────────────────────────────────────────────────────── */

static void leave_body(Front *front, Connection *c)
{
    if (c->state == IN_BODY)
        front->held_bytes -= held(&c->in) - c->head_size;
    c->body.runs = false;
}

/* Close the socket at once. Without the GIL too: what is Python's is let go of when its slot is freed. */
static void end(Front *front, Connection *c)
{
    if (c->state == CLOSED)
        return;
    leave_body(front, c);
    c->tell_lost = c->tell_lost || c->state == HANDED || c->state == ANSWERING;
    c->tell_ended = c->tell_writable = false;
    c->state = CLOSED;
    close(c->fd);
    c->fd = -1;
    release(&c->in);
    release(&c->out);
    put_due(front, c);
    wake(front);
}

/* Close once all is sent. */
static void end_after_output(Front *front, Connection *c)
{
    if (c->state == CLOSED)
        return;
    c->closes = true;
    if (c->state != HANDED) { /* Python follows one of its own until it is lost */
        leave_body(front, c);
        c->tell_lost = c->state == ANSWERING;
        c->state = LEAVING;
        release(&c->in);
        if (c->tell_lost) {
            put_due(front, c);
            wake(front);
        }
    }
    if (held(&c->out) == 0)
        end(front, c);
    else
        watch(front, c);
}

static void free_slot(Front *front, Connection *c)
{
    for (Connection **place = &front->dirty; c->is_dirty && *place != NULL; place = &(*place)->next_dirty)
        if (*place == c) {
            *place = c->next_dirty;
            break;
        }
    front->slots[c->slot] = NULL;
    front->free_slots[front->free_count++] = c->slot;
    front->open--;
    Py_CLEAR(*(PyObject **)&c->template);
    free(c);
}

/* ── reading and writing, without the GIL ─────────────────────────────────────────────────────────── */

static void has_sent(Front *front, Connection *c)
{
    if (!transmit(c)) {
        end(front, c);
        return;
    }
    if (held(&c->out) == 0)
        c->unread.runs = false;
    bool goes_on = c->state == AT_HEAD && held(&c->in) > 0 && !is_backed_up(c);
    if (c->wants_writable && held(&c->out) < AHEAD_BYTES / 4) {
        c->wants_writable = false;
        c->tell_writable = goes_on = true;
    }
    if (goes_on) {
        put_due(front, c);
        wake(front);
    }
    watch(front, c);
}

/* Whether so many bytes of bodies may be kept beside those that are. */
static bool has_room(const Front *front, uint64_t more)
{
    return front->held_bytes + front->held_elsewhere + more <= front->most_held_bytes;
}

static void has_come(Front *front, Connection *c)
{
    size_t before = held(&c->in);
    if (c->state == IN_BODY && before < c->need && !has_room(front, c->need - before)) {
        c->finds_no_room = true; /* unread: Python reads on, and refuses what is over */
        put_due(front, c);
        return;
    }
    if (!receive(c)) {
        end(front, c);
        return;
    }
    if (c->state == IN_BODY)
        front->held_bytes += held(&c->in) - before;
    if (before == 0 && c->state == AT_HEAD)
        c->since_s = now_s();
    if (c->has_ended && c->state != HANDED) {
        end_after_output(front, c);
        return;
    }
    if (c->state != ANSWERING)
        put_due(front, c);
    watch(front, c);
}

static void look_at(Front *front, const struct epoll_event *event)
{
    if (event->data.u64 >> 32 == WAKE) {
        uint64_t count;
        if (read(front->wake, &count, sizeof count) == sizeof count || errno == EAGAIN)
            front->is_awake = false;
        return;
    }
    Connection *c = find(front, event->data.u64);
    if (c == NULL || c->state == CLOSED)
        return;
    if (event->events & EPOLLOUT)
        has_sent(front, c);
    if (c->state == CLOSED)
        return;
    if (event->events & EPOLLIN && c->watched & EPOLLIN)
        has_come(front, c);
    else if (event->events & (EPOLLERR | EPOLLHUP))
        end(front, c); /* nothing can be sent any more, and nothing is read */
}

static void transmit_all(Front *front)
{
    Connection *c = front->dirty;
    front->dirty = NULL;
    while (c != NULL) {
        Connection *next = c->next_dirty;
        c->is_dirty = false;
        if (c->state != CLOSED && !c->is_blocked)
            has_sent(front, c);
        c = next;
    }
}

/* ── heads that are known ─────────────────────────────────────────────────────────────────────────── */

static bool is_same(const Known *known, const char *head, size_t size, const Length *length, const Connection *c)
{
    size_t behind = size - length->end;
    return known->template != NULL && known->length.start == length->start &&
           known->size - known->length.end == behind && known->peer_size == c->peer_size &&
           memcmp(known->head, head, length->start) == 0 &&
           memcmp(known->head + known->length.end, head + length->end, behind) == 0 &&
           memcmp(known->peer, c->peer, c->peer_size) == 0;
}

static Known *find_known(Front *front, Connection *c, const char *head, size_t size, const Length *length)
{
    Known *last = &front->known[c->entry];
    if (last->serial == c->entry_serial && is_same(last, head, size, length, c))
        return last;
    uint64_t hash = head_hash(head, size, length, c->peer, c->peer_size);
    for (uint32_t i = 0; i < front->known_count; i++) {
        Known *known = &front->known[i];
        if (known->hash == hash && is_same(known, head, size, length, c)) {
            c->entry = i;
            c->entry_serial = known->serial;
            return known;
        }
    }
    return NULL;
}

static void forget(Known *known)
{
    PyObject *template = known->template, *shape = known->door.shape, *counter = known->door.counter;
    free(known->head);
    free(known->door.reply);
    *known = (Known){0};
    Py_XDECREF(template);
    Py_XDECREF(shape);
    Py_XDECREF(counter);
}

static KnownShape *find_known_shape(Front *front, const Shape *shape, uint64_t hash)
{
    for (uint32_t i = 0; i < front->known_count; i++) {
        KnownShape *known = &front->shapes[i];
        if (known->template != NULL && known->hash == hash && is_same_shape(&known->shape, shape))
            return known;
    }
    return NULL;
}

static void forget_shape(KnownShape *known)
{
    PyObject *template = known->template;
    free(known->json);
    *known = (KnownShape){0};
    Py_XDECREF(template);
}

/* ── from bytes to what Python is told ────────────────────────────────────────────────────────────── */

/* Add (kind, id, a, b); takes over both. 0 = told, −1 = no memory, with an exception set. */
static int tell(PyObject *told, int kind, const Connection *c, PyObject *a, PyObject *b)
{
    PyObject *event = a == NULL || b == NULL ? NULL : Py_BuildValue("(iKNN)", kind, id_of(c), a, b);
    if (event == NULL) {
        if (a == NULL || b == NULL) { /* else Py_BuildValue has let go of them */
            Py_XDECREF(a);
            Py_XDECREF(b);
        }
        return -1;
    }
    int result = PyList_Append(told, event);
    Py_DECREF(event);
    return result;
}

static int tell_nothing(PyObject *told, int kind, const Connection *c)
{
    return tell(told, kind, c, Py_NewRef(Py_None), Py_NewRef(Py_None));
}

static PyObject *bytes_of(const Buffer *buffer)
{
    return PyBytes_FromStringAndSize(buffer->data == NULL ? "" : buffer->data + buffer->at, (Py_ssize_t)held(buffer));
}

/* All that is here becomes Python's. Of a body under way it learns, too, since when. */
static int tell_bytes(Front *front, PyObject *told, Connection *c)
{
    PyObject *since = PyFloat_FromDouble(c->state == IN_BODY ? c->body.began_s : 0);
    if (tell(told, BYTES, c, bytes_of(&c->in), since) < 0)
        return -1;
    if (c->state != HANDED)
        front->handed++;
    leave_body(front, c);
    Py_CLEAR(*(PyObject **)&c->template);
    c->state = HANDED;
    c->wants_input = true;
    c->finds_no_room = false;
    release(&c->in);
    return 0;
}

/* What kind of request it is; of one whose JSON is known, `known` is that, and `shape` has its numbers. */
static int look_into(Front *front, const Connection *c, const char *data, size_t size, Shape *shape, KnownShape **known)
{
    *known = NULL;
    if (c->json_size == 0 || c->json_size > size || size > MOST_SHAPED_BYTES || !find_shape(data, c->json_size, shape))
        return REQUEST;
    KnownShape *found = find_known_shape(front, shape, shape_hash(shape));
    if (found == NULL)
        return UNSHAPED;
    found->used = ++front->clock;
    if (found->template == Py_None)
        return REQUEST;
    *known = found;
    return SHAPED;
}

/* (template, body, numbers…); takes over the body. */
static PyObject *shaped(const KnownShape *known, const Shape *shape, PyObject *body)
{
    PyObject *numbers = body == NULL ? NULL : PyTuple_New(shape->count);
    for (int i = 0; numbers != NULL && i < shape->count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(shape->values[i]);
        if (number == NULL)
            Py_CLEAR(numbers);
        else
            PyTuple_SET_ITEM(numbers, i, number);
    }
    if (numbers == NULL) {
        Py_XDECREF(body);
        return NULL;
    }
    return Py_BuildValue("(ONN)", known->template, body, numbers);
}

/* ── requests that are refused here ───────────────────────────────────────────────────────────────── */

/* Whether it is the door of such a request. */
static bool is_for(const Door *door, const Connection *c, const KnownShape *known, const Shape *shape)
{
    if (door->reply == NULL || door->width > MOST_LET_IN)
        return false;
    if (known == NULL ? door->shape != NULL || c->json_size != 0 : door->shape != known->template)
        return false;
    for (int i = 0; known != NULL && i < shape->count; i++)
        if (shape->names[i] != 0 && shape->values[i] != door->values[shape->names[i]])
            return false;
    return true;
}

typedef enum { LET_IN, NOT_YET, REFUSE } Verdict;

/* What becomes of a whole request at its head's door. */
static Verdict at_door(Front *front, const Connection *c, const KnownShape *shape, const Shape *numbers)
{
    Known *known = &front->known[c->entry];
    Door *door = &known->door;
    if (known->template != c->template || known->serial != c->entry_serial || !is_for(door, c, shape, numbers))
        return LET_IN;
    if (now_s() < door->until_s)
        return REFUSE;
    if (door->turn != front->turns) {
        door->turn = front->turns;
        door->width = door->width == 0 ? FIRST_LET_IN : 2 * door->width;
        door->let_in = 0;
    }
    return door->let_in++ < door->width ? LET_IN : NOT_YET;
}

/* −1 = no memory for the reply. */
static int refuse(Front *front, Connection *c, Known *known)
{
    Door *door = &known->door;
    leave_body(front, c);
    Py_CLEAR(*(PyObject **)&c->template);
    drop(&c->in, c->need);
    c->state = AT_HEAD;
    c->has_asked = true;
    c->since_s = now_s();
    if (!append(&c->out, door->reply, door->size))
        return -1;
    put_dirty(front, c);
    if (held(&c->in) > 0) {
        put_due(front, c);
        wake(front);
    }
    front->requests++;
    door->refused++;
    if (!door->is_touched) {
        door->is_touched = true;
        known->next_touched = front->touched;
        front->touched = known;
    }
    return 0;
}

/* Add (REFUSED, 0, counter, how many) of each door; what was not told is told with the next. */
static void tell_refused(Front *front, PyObject *told)
{
    while (front->touched != NULL) {
        Known *known = front->touched;
        front->touched = known->next_touched;
        known->door.is_touched = false;
        PyObject *event = Py_BuildValue("(iiOK)", REFUSED, 0, known->door.counter, known->door.refused);
        if (event == NULL || PyList_Append(told, event) < 0)
            PyErr_Clear();
        else
            known->door.refused = 0;
        Py_XDECREF(event);
    }
}

static int tell_request(Front *front, PyObject *told, Connection *c)
{
    size_t size = c->need - c->head_size;
    const char *data = c->in.data + c->in.at + c->head_size;
    Shape shape;
    KnownShape *known;
    int kind = look_into(front, c, data, size, &shape, &known);
    Verdict verdict = kind == UNSHAPED ? LET_IN : at_door(front, c, known, &shape);
    if (verdict == REFUSE)
        return refuse(front, c, &front->known[c->entry]);
    if (verdict == NOT_YET) {
        if (c->state == AT_HEAD)
            Py_CLEAR(*(PyObject **)&c->template); /* it is looked at anew */
        put_due(front, c);
        wake(front);
        return 0;
    }
    PyObject *body = PyBytes_FromStringAndSize(data, (Py_ssize_t)size);
    if (kind == SHAPED)
        body = shaped(known, &shape, body);
    if (tell(told, kind, c, Py_NewRef((PyObject *)c->template), body) < 0)
        return -1;
    leave_body(front, c);
    Py_CLEAR(*(PyObject **)&c->template);
    c->state = ANSWERING;
    c->has_asked = true;
    drop(&c->in, c->need);
    front->requests++;
    return 0;
}

/* A request, its beginning, or something that Python has to read. */
static int tell_input(Front *front, PyObject *told, Connection *c)
{
    if (c->state == HANDED || c->finds_no_room)
        return tell_bytes(front, told, c);
    if (c->state == AT_HEAD) {
        const char *head = c->in.data + c->in.at;
        size_t size = head_end(head, held(&c->in));
        Length length;
        if (size == 0 || size > MOST_HEAD_BYTES || !find_length(head, size, &length))
            return tell_bytes(front, told, c);
        Known *known = find_known(front, c, head, size, &length);
        if (known == NULL || length.value > known->limit)
            return tell_bytes(front, told, c);
        size_t body = held(&c->in) - size;
        if (body < length.value && !has_room(front, length.value))
            return tell_bytes(front, told, c);
        known->used = ++front->clock;
        c->template = Py_NewRef(known->template);
        c->head_size = size;
        c->json_size = known->json_size;
        c->need = size + length.value;
        if (body < length.value) {
            c->state = IN_BODY;
            c->body = (Pace){c->since_s, 0, true};
            front->held_bytes += body;
            return 0;
        }
        return tell_request(front, told, c);
    }
    return held(&c->in) >= c->need ? tell_request(front, told, c) : 0;
}

/* Tell what there is of one connection; −1 = no memory, and what was not told is kept. */
static int tell_all(Front *front, PyObject *told, Connection *c)
{
    bool has_input = held(&c->in) > 0 && (c->state == HANDED || c->state == IN_BODY ||
                                          (c->state == AT_HEAD && !is_backed_up(c)));
    if (has_input && tell_input(front, told, c) < 0) {
        PyErr_Clear(); /* no memory for what this client sends: it goes, and nobody else */
        end(front, c);
        return 0;
    }
    if (c->tell_writable) {
        if (tell_nothing(told, WRITABLE, c) < 0)
            return -1;
        c->tell_writable = false;
    }
    if (c->tell_ended && c->state == HANDED) {
        if (tell_nothing(told, ENDED, c) < 0)
            return -1;
        c->tell_ended = false;
    }
    if (c->tell_lost) {
        if (tell_nothing(told, LOST, c) < 0)
            return -1;
        c->tell_lost = false;
    }
    if (c->state == CLOSED)
        free_slot(front, c);
    else
        watch(front, c);
    return 0;
}

/* ── methods ──────────────────────────────────────────────────────────────────────────────────────── */

static bool enter(Front *front)
{
    if (front->busy)
        PyErr_SetString(PyExc_RuntimeError, "a front belongs to one thread, the event loop's");
    else if (front->epoll < 0)
        PyErr_SetString(PyExc_ValueError, "the front is closed");
    return !PyErr_Occurred();
}

#define WITHOUT_GIL(front, work) \
    do { \
        (front)->busy = true; \
        Py_BEGIN_ALLOW_THREADS work; \
        Py_END_ALLOW_THREADS(front)->busy = false; \
    } while (0)

static PyObject *front_turn(Front *front, PyObject *Py_UNUSED(none))
{
    if (!enter(front))
        return NULL;
    PyObject *told = PyList_New(0);
    if (told == NULL)
        return NULL;
    struct epoll_event events[EVENTS];
    int count;
    front->turns++;
    WITHOUT_GIL(front, {
        count = epoll_wait(front->epoll, events, EVENTS, 0);
        for (int i = 0; i < count; i++)
            look_at(front, &events[i]);
    });
    /* Those that are due now; what becomes due meanwhile is the next turn's. */
    Connection *last = NULL;
    for (Connection *c = front->due; c != NULL; c = c->next_due)
        last = c;
    for (Connection *c = NULL; c != last;) {
        c = take_due(front);
        bool was_last = c == last;
        if (tell_all(front, told, c) < 0) {
            put_due(front, c);
            wake(front);
            if (PyList_GET_SIZE(told) == 0) {
                Py_DECREF(told);
                return NULL;
            }
            PyErr_Clear(); /* what was told must be heard */
            break;
        }
        if (was_last)
            break;
    }
    if (front->touched != NULL) {
        tell_refused(front, told);
        WITHOUT_GIL(front, { transmit_all(front); });
    }
    return told;
}

static PyObject *front_flush(Front *front, PyObject *Py_UNUSED(none))
{
    if (!enter(front))
        return NULL;
    if (front->dirty != NULL)
        WITHOUT_GIL(front, { transmit_all(front); });
    Py_RETURN_NONE;
}

static bool grow_slots(Front *front)
{
    uint32_t count = front->slot_count == 0 ? 64 : front->slot_count * 2;
    if (count > MOST_SLOTS)
        return false;
    Connection **slots = front_realloc(front->slots, count * sizeof *slots);
    if (slots == NULL)
        return false;
    front->slots = slots;
    uint32_t *free_slots = front_realloc(front->free_slots, count * sizeof *free_slots);
    if (free_slots == NULL)
        return false;
    front->free_slots = free_slots;
    for (uint32_t slot = count; slot-- > front->slot_count;) {
        slots[slot] = NULL;
        free_slots[front->free_count++] = slot;
    }
    front->slot_count = count;
    return true;
}

/* A connection more; NULL = there is none, its socket is still the caller's, and errno says why. */
static Connection *add(Front *front, const Client *client)
{
    Connection *c = NULL;
    if (front->free_count > 0 || grow_slots(front))
        c = front_realloc(NULL, sizeof *c);
    if (c == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    memset(c, 0, sizeof *c);
    c->fd = client->fd;
    c->slot = front->free_slots[front->free_count - 1];
    c->generation = (uint32_t)(++front->clock % (WAKE - 1)) + 1;
    c->since_s = now_s();
    c->port = client->port;
    c->peer_size = client->peer_size;
    memcpy(c->peer, client->peer, c->peer_size);
    struct epoll_event event = {.events = c->watched = EPOLLIN, .data.u64 = id_of(c)};
    if (epoll_ctl(front->epoll, EPOLL_CTL_ADD, c->fd, &event) < 0) {
        free(c);
        return NULL;
    }
    front->free_count--;
    front->slots[c->slot] = c;
    front->open++;
    return c;
}

static PyObject *front_adopt(Front *front, PyObject *arguments)
{
    Client client;
    const char *peer;
    Py_ssize_t peer_size;
    if (!PyArg_ParseTuple(arguments, "iy#i:adopt", &client.fd, &peer, &peer_size, &client.port) || !enter(front))
        return NULL;
    if (peer_size > PEER_BYTES)
        return PyErr_Format(PyExc_ValueError, "an address has at most %d bytes", PEER_BYTES);
    client.peer_size = (size_t)peer_size;
    memcpy(client.peer, peer, client.peer_size);
    Connection *c = add(front, &client);
    if (c == NULL)
        return errno == ENOMEM ? PyErr_NoMemory() : PyErr_SetFromErrno(PyExc_OSError);
    PyObject *id = PyLong_FromUnsignedLongLong(id_of(c));
    if (id == NULL) {
        epoll_ctl(front->epoll, EPOLL_CTL_DEL, c->fd, NULL);
        free_slot(front, c);
    }
    return id;
}

/* Adopt those who have come to a listening socket, `most` at a time; those beyond `limit` connections get the
 * reply instead. How many came; OSError where no more could be accepted, for another reason than that none came. */
static PyObject *front_accept(Front *front, PyObject *arguments)
{
    int listening;
    unsigned long most;
    unsigned long long limit;
    Py_buffer reply;
    if (!PyArg_ParseTuple(arguments, "ikKy*:accept", &listening, &most, &limit, &reply))
        return NULL;
    if (!enter(front)) {
        PyBuffer_Release(&reply);
        return NULL;
    }
    unsigned long came = 0;
    int why = 0;
    WITHOUT_GIL(front, {
        Client client;
        while (came < most && why == 0) {
            if (!accept_client(listening, &client)) {
                why = errno;
                break;
            }
            came++;
            if (front->open >= limit)
                turn_away(&front->leaving, &client, reply.buf, (size_t)reply.len, now_s());
            else if (add(front, &client) == NULL) {
                why = errno;
                close(client.fd);
            }
        }
    });
    PyBuffer_Release(&reply);
    if (why == 0 || why == EAGAIN || why == EWOULDBLOCK || why == ECONNABORTED)
        return PyLong_FromUnsignedLong(came);
    errno = why;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* The connection of an id that is the only argument; NULL without an exception = it has ended. */
static bool find_one(Front *front, PyObject *argument, Connection **found)
{
    uint64_t id = PyLong_AsUnsignedLongLong(argument);
    if ((id == (uint64_t)-1 && PyErr_Occurred()) || !enter(front))
        return false;
    *found = find(front, id);
    if (*found != NULL && (*found)->state == CLOSED)
        *found = NULL;
    return true;
}

static bool find_first(Front *front, unsigned long long id, Connection **found)
{
    if (!enter(front))
        return false;
    *found = find(front, id);
    if (*found != NULL && (*found)->state == CLOSED)
        *found = NULL;
    return true;
}

static PyObject *front_peer(Front *front, PyObject *argument)
{
    Connection *c;
    if (!find_one(front, argument, &c))
        return NULL;
    return c == NULL ? Py_BuildValue("(y#i)", "", (Py_ssize_t)0, 0)
                     : Py_BuildValue("(y#i)", c->peer, (Py_ssize_t)c->peer_size, c->port);
}

static PyObject *front_reply(Front *front, PyObject *arguments)
{
    unsigned long long id;
    Py_buffer head, body;
    int closes;
    if (!PyArg_ParseTuple(arguments, "Ky*y*p:reply", &id, &head, &body, &closes))
        return NULL;
    Connection *c;
    bool is_found = find_first(front, id, &c);
    if (is_found && c != NULL && c->state == ANSWERING) {
        char length[48];
        int size = snprintf(length, sizeof length, "content-length: %zd\r\n\r\n", body.len);
        if (!append(&c->out, head.buf, (size_t)head.len) || !append(&c->out, length, (size_t)size) ||
            !append(&c->out, body.buf, (size_t)body.len)) {
            c->state = LEAVING; /* a part of a reply would be read as one */
            end(front, c);
        } else {
            c->state = AT_HEAD;
            c->since_s = now_s();
            put_dirty(front, c);
            if (closes) {
                c->state = LEAVING;
                c->closes = true;
                release(&c->in);
            } else if (held(&c->in) > 0) {
                put_due(front, c);
                wake(front);
            }
        }
    }
    PyBuffer_Release(&head);
    PyBuffer_Release(&body);
    if (!is_found)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *front_learn(Front *front, PyObject *arguments)
{
    unsigned long long id, limit, json_size;
    const char *head;
    Py_ssize_t size;
    PyObject *template;
    Connection *c;
    Length length;
    if (!PyArg_ParseTuple(arguments, "Ky#OKK:learn", &id, &head, &size, &template, &limit, &json_size) ||
        !find_first(front, id, &c))
        return NULL;
    if (c == NULL || size > MOST_HEAD_BYTES || head_end(head, (size_t)size) != (size_t)size ||
        !find_length(head, (size_t)size, &length))
        Py_RETURN_NONE;
    PyObject *place = Py_BuildValue("(nn)", (Py_ssize_t)length.start, (Py_ssize_t)length.end);
    if (place == NULL)
        return NULL;
    char *copy = front_realloc(NULL, (size_t)size);
    if (copy == NULL) {
        Py_DECREF(place);
        return PyErr_NoMemory();
    }
    memcpy(copy, head, (size_t)size);
    Known *known = find_known(front, c, head, (size_t)size, &length);
    if (known == NULL) { /* the one that was not used for the longest time goes */
        known = &front->known[0];
        for (uint32_t i = 1; i < front->known_count && known->template != NULL; i++)
            if (front->known[i].used < known->used)
                known = &front->known[i];
    }
    Known old = *known;
    *known = (Known){
        .template = Py_NewRef(template),
        .head = copy,
        .size = (size_t)size,
        .length = length,
        .hash = head_hash(head, (size_t)size, &length, c->peer, c->peer_size),
        .used = ++front->clock,
        .limit = limit < front->ordinary_bytes ? limit : front->ordinary_bytes,
        .json_size = json_size > MOST_HEAD_BYTES ? 0 : json_size,
        .serial = ++front->next_serial,
        .peer_size = c->peer_size,
    };
    memcpy(known->peer, c->peer, c->peer_size);
    forget(&old);
    return place;
}

/* (the pieces, the places of their names among NUMBERS), or None where it is not ordinary. */
static PyObject *front_shape_of(Front *Py_UNUSED(front), PyObject *json)
{
    char *data;
    Py_ssize_t size;
    Shape shape;
    if (PyBytes_AsStringAndSize(json, &data, &size) < 0)
        return NULL;
    if (size > MOST_HEAD_BYTES || !find_shape(data, (size_t)size, &shape))
        Py_RETURN_NONE;
    PyObject *pieces = PyList_New(0), *names = PyList_New(0);
    for (int i = 0; pieces != NULL && names != NULL && i <= shape.count; i++) {
        PyObject *piece = PyBytes_FromStringAndSize(shape.piece[i], (Py_ssize_t)shape.size[i]);
        PyObject *name = PyLong_FromLong(i < shape.count ? shape.names[i] : 0);
        if (piece == NULL || name == NULL || PyList_Append(pieces, piece) < 0 ||
            (i < shape.count && PyList_Append(names, name) < 0))
            Py_CLEAR(pieces);
        Py_XDECREF(piece);
        Py_XDECREF(name);
    }
    if (pieces == NULL || names == NULL) {
        Py_XDECREF(pieces);
        Py_XDECREF(names);
        return NULL;
    }
    return Py_BuildValue("(NN)", pieces, names);
}

static PyObject *front_learn_shape(Front *front, PyObject *arguments)
{
    const char *json;
    Py_ssize_t size;
    PyObject *template;
    Shape shape;
    if (!PyArg_ParseTuple(arguments, "y#O:learn_shape", &json, &size, &template) || !enter(front))
        return NULL;
    if (size > MOST_HEAD_BYTES || !find_shape(json, (size_t)size, &shape))
        Py_RETURN_NONE;
    char *copy = front_realloc(NULL, (size_t)size);
    if (copy == NULL)
        return PyErr_NoMemory();
    memcpy(copy, json, (size_t)size);
    for (int i = 0; i <= shape.count; i++)
        shape.piece[i] = copy + (shape.piece[i] - json);
    uint64_t hash = shape_hash(&shape);
    KnownShape *known = find_known_shape(front, &shape, hash);
    if (known == NULL) {
        known = &front->shapes[0];
        for (uint32_t i = 1; i < front->known_count && known->template != NULL; i++)
            if (front->shapes[i].used < known->used)
                known = &front->shapes[i];
    }
    KnownShape old = *known;
    *known = (KnownShape){Py_NewRef(template), copy, shape, hash, ++front->clock};
    forget_shape(&old);
    Py_RETURN_NONE;
}

static PyObject *front_forget(Front *front, PyObject *template)
{
    if (!enter(front))
        return NULL;
    for (uint32_t i = 0; i < front->known_count; i++)
        if (front->known[i].template == template)
            forget(&front->known[i]);
    Py_RETURN_NONE;
}

/* Refuse requests of a head, and of a JSON with these numbers or of none, until then. */
static PyObject *front_shut(Front *front, PyObject *arguments)
{
    PyObject *template, *shape, *numbers, *counter;
    double until_s;
    Py_buffer reply;
    if (!PyArg_ParseTuple(arguments, "OOO!dy*O:shut", &template, &shape, &PyTuple_Type, &numbers, &until_s, &reply,
                          &counter))
        return NULL;
    Known *known = NULL;
    const KnownShape *known_shape = NULL;
    if (!enter(front))
        goto over;
    for (uint32_t i = 0; i < front->known_count; i++) {
        if (front->known[i].template == template)
            known = &front->known[i];
        if (shape != Py_None && front->shapes[i].template == shape)
            known_shape = &front->shapes[i];
    }
    if (known == NULL || (shape != Py_None && (known_shape == NULL || known_shape->shape.count != PyTuple_Size(numbers))))
        goto over; /* what is known no more needs no door */
    Door door = {.until_s = until_s, .size = (size_t)reply.len};
    for (int i = 0; known_shape != NULL && i < known_shape->shape.count; i++) {
        uint64_t value = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(numbers, i));
        if (value == (uint64_t)-1 && PyErr_Occurred())
            goto over;
        door.values[known_shape->shape.names[i]] = value;
    }
    door.reply = front_realloc(NULL, door.size);
    if (door.reply == NULL)
        goto over; /* its likes go the long way */
    memcpy(door.reply, reply.buf, door.size);
    door.shape = known_shape == NULL ? NULL : Py_NewRef(shape);
    door.counter = Py_NewRef(counter);
    Door old = known->door;
    known->door = door;
    free(old.reply);
    Py_XDECREF(old.shape);
    Py_XDECREF(old.counter);
over:
    PyBuffer_Release(&reply);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *front_hand_over(Front *front, PyObject *argument)
{
    Connection *c;
    if (!find_one(front, argument, &c))
        return NULL;
    if (c == NULL || (c->state != ANSWERING && c->state != AT_HEAD))
        Py_RETURN_NONE;
    PyObject *ahead = bytes_of(&c->in);
    if (ahead != NULL) {
        release(&c->in);
        c->state = HANDED;
        c->wants_input = true;
        front->handed++;
        watch(front, c);
    }
    return ahead;
}

static PyObject *front_take_back(Front *front, PyObject *argument)
{
    Connection *c;
    if (!find_one(front, argument, &c))
        return NULL;
    if (c == NULL || c->state != HANDED || c->closes || c->has_ended || c->tell_lost || !c->wants_input)
        Py_RETURN_FALSE;
    c->state = AT_HEAD;
    c->has_asked = true;
    c->since_s = now_s();
    c->wants_writable = c->tell_writable = false;
    if (held(&c->in) > 0) {
        put_due(front, c);
        wake(front);
    }
    watch(front, c);
    Py_RETURN_TRUE;
}

static PyObject *front_write(Front *front, PyObject *arguments)
{
    unsigned long long id;
    Py_buffer data;
    if (!PyArg_ParseTuple(arguments, "Ky*:write", &id, &data))
        return NULL;
    Connection *c;
    bool is_found = find_first(front, id, &c);
    size_t waiting = 0;
    if (is_found && c != NULL && c->state == HANDED && !c->closes) {
        if (append(&c->out, data.buf, (size_t)data.len)) {
            waiting = held(&c->out);
            c->wants_writable = c->wants_writable || waiting > AHEAD_BYTES;
            put_dirty(front, c);
        } else
            end(front, c);
    }
    PyBuffer_Release(&data);
    return is_found ? PyLong_FromSize_t(waiting) : NULL;
}

static PyObject *front_buffered(Front *front, PyObject *argument)
{
    Connection *c;
    return find_one(front, argument, &c) ? PyLong_FromSize_t(c == NULL ? 0 : held(&c->out)) : NULL;
}

static PyObject *front_read_on(Front *front, PyObject *arguments)
{
    unsigned long long id;
    int wants;
    Connection *c;
    if (!PyArg_ParseTuple(arguments, "Kp:read_on", &id, &wants) || !find_first(front, id, &c))
        return NULL;
    if (c != NULL && c->state == HANDED) {
        c->wants_input = wants;
        watch(front, c);
    }
    Py_RETURN_NONE;
}

static PyObject *front_end_output(Front *front, PyObject *argument)
{
    Connection *c;
    if (!find_one(front, argument, &c))
        return NULL;
    if (c != NULL && c->state == HANDED) {
        c->ends_output = true;
        put_dirty(front, c);
    }
    Py_RETURN_NONE;
}

static PyObject *front_close_one(Front *front, PyObject *argument)
{
    Connection *c;
    if (!find_one(front, argument, &c))
        return NULL;
    if (c != NULL)
        end_after_output(front, c);
    Py_RETURN_NONE;
}

static PyObject *front_abort(Front *front, PyObject *argument)
{
    Connection *c;
    if (!find_one(front, argument, &c))
        return NULL;
    if (c != NULL)
        end(front, c);
    Py_RETURN_NONE;
}

static bool is_slow(const Front *front, const Pace *pace, uint64_t done, double now)
{
    double late_s = now - pace->began_s - front->times.slow_s;
    return late_s > 0 && (double)done < late_s * front->times.least_bytes_per_s;
}

/* One connection that Python does not watch. −1 = no memory. */
static int look_after(Front *front, PyObject *told, Connection *c, double now)
{
    if (held(&c->out) > 0) {
        if (!c->unread.runs)
            c->unread = (Pace){now, c->sent, true};
        if (!is_slow(front, &c->unread, c->sent - c->unread.done, now))
            return 0;
        int result = tell(told, SLOW, c, PyBytes_FromStringAndSize(c->peer, (Py_ssize_t)c->peer_size),
                          PyLong_FromSize_t(held(&c->out)));
        if (result == 0)
            end(front, c);
        return result;
    }
    double limit_s = c->has_asked ? front->times.idle_s : front->times.head_s;
    if (c->state == AT_HEAD && held(&c->in) == 0 && now - c->since_s > limit_s)
        end(front, c);
    /* Python refuses it, in its own words. */
    if (c->state == IN_BODY && is_slow(front, &c->body, held(&c->in) - c->head_size, now)) {
        int result = tell_bytes(front, told, c);
        watch(front, c);
        return result;
    }
    return 0;
}

static PyObject *front_look(Front *front, PyObject *argument)
{
    double now = PyFloat_AsDouble(argument);
    if ((now == -1.0 && PyErr_Occurred()) || !enter(front))
        return NULL;
    see_off(&front->leaving, now);
    PyObject *told = PyList_New(0);
    for (uint32_t slot = 0; told != NULL && slot < front->slot_count; slot++) {
        Connection *c = front->slots[slot];
        if (c == NULL || c->state == HANDED || c->state == CLOSED)
            continue;
        if (look_after(front, told, c, now) < 0)
            PyErr_Clear(); /* the next look comes in a second */
    }
    return told;
}

static PyObject *front_shutdown(Front *front, PyObject *Py_UNUSED(none))
{
    if (!enter(front))
        return NULL;
    for (uint32_t i = 0; i < front->known_count; i++)
        front->known[i].door.until_s = 0; /* from now on replies say that the connection ends */
    for (uint32_t slot = 0; slot < front->slot_count; slot++) {
        Connection *c = front->slots[slot];
        if (c != NULL && c->state == AT_HEAD)
            end_after_output(front, c);
    }
    Py_RETURN_NONE;
}

static void let_go(Front *front)
{
    for (uint32_t slot = 0; slot < front->slot_count; slot++)
        if (front->slots[slot] != NULL)
            end(front, front->slots[slot]);
    front->due = front->dirty = NULL; /* before those in it are gone */
    front->due_end = &front->due;
    for (uint32_t slot = 0; slot < front->slot_count; slot++)
        if (front->slots[slot] != NULL)
            free_slot(front, front->slots[slot]);
    for (uint32_t i = 0; i < front->known_count; i++) {
        forget(&front->known[i]);
        forget_shape(&front->shapes[i]);
    }
    see_all_off(&front->leaving);
    if (front->epoll >= 0)
        close(front->epoll);
    if (front->wake >= 0)
        close(front->wake);
    front->epoll = front->wake = -1;
}

static PyObject *front_close(Front *front, PyObject *Py_UNUSED(none))
{
    if (front->busy)
        return PyErr_Format(PyExc_RuntimeError, "a front belongs to one thread, the event loop's");
    let_go(front);
    Py_RETURN_NONE;
}

static PyObject *front_hold_elsewhere(Front *front, PyObject *argument)
{
    uint64_t held_bytes = PyLong_AsUnsignedLongLong(argument);
    if ((held_bytes == (uint64_t)-1 && PyErr_Occurred()) || !enter(front))
        return NULL;
    front->held_elsewhere = held_bytes;
    Py_RETURN_NONE;
}

static PyObject *front_fileno(Front *front, PyObject *Py_UNUSED(none))
{
    return enter(front) ? PyLong_FromLong(front->epoll) : NULL;
}

static PyObject *front_counts(Front *front, PyObject *Py_UNUSED(none))
{
    return Py_BuildValue("{s:K,s:K,s:K,s:K}", "connections", front->open, "held_bytes", front->held_bytes,
                         "requests", front->requests, "handed", front->handed);
}

#ifdef EXTENSION_FAULTS
static PyObject *front_fail_after(PyObject *Py_UNUSED(module), PyObject *argument)
{
    long count = PyLong_AsLong(argument);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    front_allocations_left = count;
    Py_RETURN_NONE;
}
#endif

/* ── the type ─────────────────────────────────────────────────────────────────────────────────────── */

static PyObject *front_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {"held_bytes", "ordinary_bytes", "heads", "head_s",
                               "idle_s",     "slow_s",         "least_bytes_per_s", NULL};
    unsigned long long held_bytes, ordinary_bytes;
    unsigned int heads;
    Times times;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "$KKIdddd:Front", keywords, &held_bytes, &ordinary_bytes,
                                     &heads, &times.head_s, &times.idle_s, &times.slow_s,
                                     &times.least_bytes_per_s))
        return NULL;
    if (heads == 0 || heads > 1 << 16)
        return PyErr_Format(PyExc_ValueError, "heads must be from 1 to 65536, not %u", heads);
    Front *front = (Front *)type->tp_alloc(type, 0);
    if (front == NULL)
        return NULL;
    front->due_end = &front->due;
    front->most_held_bytes = held_bytes;
    front->ordinary_bytes = ordinary_bytes;
    front->times = times;
    front->epoll = epoll_create1(EPOLL_CLOEXEC);
    front->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)WAKE << 32};
    if (front->epoll < 0 || front->wake < 0 || epoll_ctl(front->epoll, EPOLL_CTL_ADD, front->wake, &event) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(front);
        return NULL;
    }
    front->known = front_realloc(NULL, heads * sizeof *front->known);
    front->shapes = front_realloc(NULL, heads * sizeof *front->shapes);
    if (front->known == NULL || front->shapes == NULL) {
        Py_DECREF(front);
        return PyErr_NoMemory();
    }
    memset(front->known, 0, heads * sizeof *front->known);
    memset(front->shapes, 0, heads * sizeof *front->shapes);
    front->known_count = heads;
    return (PyObject *)front;
}

static void front_dealloc(Front *front)
{
    PyTypeObject *type = Py_TYPE(front);
    let_go(front);
    free(front->known);
    free(front->shapes);
    free(front->slots);
    free(front->free_slots);
    type->tp_free(front);
    Py_DECREF(type);
}

#define METHOD(name, how) {#name, (PyCFunction)front_##name, how, NULL}

static PyMethodDef methods[] = {
    METHOD(fileno, METH_NOARGS),
    METHOD(adopt, METH_VARARGS),
    METHOD(accept, METH_VARARGS),
    METHOD(peer, METH_O),
    METHOD(turn, METH_NOARGS),
    METHOD(flush, METH_NOARGS),
    METHOD(reply, METH_VARARGS),
    METHOD(learn, METH_VARARGS),
    METHOD(shape_of, METH_O),
    METHOD(learn_shape, METH_VARARGS),
    METHOD(forget, METH_O),
    METHOD(shut, METH_VARARGS),
    METHOD(hand_over, METH_O),
    METHOD(take_back, METH_O),
    METHOD(write, METH_VARARGS),
    METHOD(buffered, METH_O),
    METHOD(read_on, METH_VARARGS),
    METHOD(end_output, METH_O),
    METHOD(close_one, METH_O),
    METHOD(abort, METH_O),
    METHOD(look, METH_O),
    METHOD(hold_elsewhere, METH_O),
    METHOD(shutdown, METH_NOARGS),
    METHOD(close, METH_NOARGS),
    METHOD(counts, METH_NOARGS),
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, front_new},
    {Py_tp_dealloc, front_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Connections of clients; see front.py."},
    {0},
};

static PyType_Spec spec = {
    .name = "server.http.native._front.Front",
    .basicsize = sizeof(Front),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

static int fill(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    Py_DECREF(type);
    return PyModule_AddIntConstant(module, "REQUEST", REQUEST) || PyModule_AddIntConstant(module, "BYTES", BYTES) ||
                   PyModule_AddIntConstant(module, "ENDED", ENDED) ||
                   PyModule_AddIntConstant(module, "LOST", LOST) ||
                   PyModule_AddIntConstant(module, "WRITABLE", WRITABLE) ||
                   PyModule_AddIntConstant(module, "SLOW", SLOW) ||
                   PyModule_AddIntConstant(module, "UNSHAPED", UNSHAPED) ||
                   PyModule_AddIntConstant(module, "SHAPED", SHAPED) ||
                   PyModule_AddIntConstant(module, "REFUSED", REFUSED)
               ? -1
               : 0;
}

static PyMethodDef functions[] = {
#ifdef EXTENSION_FAULTS
    {"fail_after", front_fail_after, METH_O, NULL},
#endif
    {0},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_front",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__front(void) { return PyModuleDef_Init(&definition); }
