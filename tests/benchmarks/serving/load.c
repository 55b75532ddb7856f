/* An open-loop load generator that leaves the machine to the server it measures.
 *
 *   load PORT REQUESTS ARRIVALS PATIENCE_S > OUTCOMES
 *
 * One thread, one epoll. Row number i leaves at ARRIVALS[i] seconds, whatever became of the rows before it, on a
 * kept-alive connection that is free, or on a new one; its latency counts from that moment, so that no omission
 * is coordinated with the server. After the last row it waits PATIENCE_S for answers.
 *
 * REQUESTS   u32 length and bytes, over and over: whole HTTP requests, sent in turn
 * ARRIVALS   float64, ascending
 * OUTCOMES   float64 latency (infinite without an answer) and float64 status (0 without one) for each row; at
 *            last float64 how late the generator itself was at worst, and the number of connections it opened
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { OPEN_FIRST = 32, OPEN_MOST = 16000, REPLY_BYTES = 1 << 14, EVENTS = 256 };

typedef struct {
    int fd;
    int next;      /* the free connection behind this one; -1 = none */
    long row;      /* the row on its way; -1 = none */
    size_t sent;   /* bytes of its request */
    size_t got;    /* bytes of its reply */
    char *reply;
} connection;

typedef struct {
    uint32_t size;
    char *bytes;
} request;

static connection connections[OPEN_MOST];
static int opened, free_first = -1, alive;
static request *requests;
static size_t request_count;
static double *arrivals, *latencies, *statuses;
static long rows, left;
static long waiting, blocked = -1;   /* the first row that has not left; one that found no connection */
static double began;
static int epoll;
static struct sockaddr_in server = {.sin_family = AF_INET};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    if (!bytes || fread(bytes, 1, *size, file) != *size) die(path);
    fclose(file);
    return bytes;
}

static void read_requests(const char *path) {
    size_t size, at = 0;
    char *bytes = read_file(path, &size);
    while (at < size) {
        requests = realloc(requests, (request_count + 1) * sizeof *requests);
        request *one = &requests[request_count++];
        memcpy(&one->size, bytes + at, 4);
        one->bytes = bytes + at + 4;
        at += 4 + one->size;
    }
}

static void watch(connection *c, uint32_t events, int operation) {
    struct epoll_event event = {.events = events, .data.u32 = c - connections};
    if (epoll_ctl(epoll, operation, c->fd, &event)) die("epoll_ctl");
}

/* (Re)opens a connection; 0 if that is refused at once. */
static int open_connection(connection *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&server, sizeof server) && errno != EINPROGRESS) {
        close(c->fd);
        c->fd = -1;
        return 0;
    }
    alive++;
    watch(c, EPOLLIN, EPOLL_CTL_ADD);
    return 1;
}

static void finish(connection *c, double status) {
    if (c->row < 0) return;
    if (status) latencies[c->row] = now() - began - arrivals[c->row];
    statuses[c->row] = status;
    c->row = -1;
    left--;
}

static void set_free(connection *c) {
    c->next = free_first;
    free_first = c - connections;
}

/* The connection is gone, and the row on it lost. */
static void drop(connection *c) {
    finish(c, 0);
    if (c->fd >= 0) {
        close(c->fd);
        alive--;
    }
    c->fd = -1;
}

static void write_request(connection *c) {
    request *r = &requests[c->row % request_count];
    while (c->sent < r->size) {
        ssize_t n = send(c->fd, r->bytes + c->sent, r->size - c->sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN && errno != ENOTCONN) {
                drop(c);
                set_free(c);
            } else {
                watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
            }
            return;
        }
        c->sent += n;
    }
}

/* A connection for the next row: one that is free, or another; NULL when there are too many. */
static connection *take(void) {
    connection *c;
    if (free_first >= 0) {
        c = &connections[free_first];
        free_first = c->next;
    } else if (opened < OPEN_MOST) {
        c = &connections[opened++];
        *c = (connection){.fd = -1, .row = -1, .reply = malloc(REPLY_BYTES + 1)};
    } else {
        return NULL;
    }
    return c;
}

static int send_row(long row) {
    connection *c = take();
    if (!c) return 0;
    c->row = row;
    c->sent = c->got = 0;
    if (c->fd < 0 && !open_connection(c)) {
        drop(c);
        set_free(c);
    } else {
        write_request(c);
    }
    return 1;
}

static int is_chunked_end(const connection *c) {
    return c->got >= 5 && !memcmp(c->reply + c->got - 5, "0\r\n\r\n", 5);
}

/* Whether the reply is whole; what is in the way of the next one goes. */
static int is_whole(connection *c) {
    c->reply[c->got] = 0;
    char *end = strstr(c->reply, "\r\n\r\n");
    if (!end) return 0;
    *end = 0;
    char *length = strcasestr(c->reply, "\r\ncontent-length:");
    int chunked = strcasestr(c->reply, "\r\ntransfer-encoding: chunked") != NULL;
    size_t wanted = end + 4 - c->reply + (length ? strtoul(length + 17, NULL, 10) : 0);
    int whole = chunked ? is_chunked_end(c) : c->got >= wanted;
    if (!whole) *end = '\r';
    return whole;
}

static void read_reply(connection *c) {
    ssize_t n = recv(c->fd, c->reply + c->got, REPLY_BYTES - c->got, 0);
    if (n < 0 && errno == EAGAIN) return;
    int idle = c->row < 0;
    if (n <= 0) {  /* also a reply that is longer than any should be */
        drop(c);
        if (!idle) set_free(c);  /* an idle one is in the list already, and opened again when it is taken */
        return;
    }
    c->got += n;
    if (idle || !is_whole(c)) return;
    int closes = strcasestr(c->reply, "\r\nconnection: close") != NULL;
    finish(c, strtod(c->reply + 9, NULL));
    if (closes) drop(c);
    set_free(c);
}

int main(int count, char **arguments) {
    if (count != 5) {
        fprintf(stderr, "load PORT REQUESTS ARRIVALS PATIENCE_S\n");
        return 2;
    }
    size_t size;
    server.sin_port = htons(atoi(arguments[1]));
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    read_requests(arguments[2]);
    arrivals = (double *)read_file(arguments[3], &size);
    rows = left = size / sizeof *arrivals;
    double patience = atof(arguments[4]), lag = 0;
    latencies = malloc(size);
    statuses = calloc(rows, sizeof *statuses);
    for (long row = 0; row < rows; row++) latencies[row] = INFINITY;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) die("getrlimit");
    files.rlim_cur = files.rlim_max;
    if (files.rlim_max < OPEN_MOST + 64 || setrlimit(RLIMIT_NOFILE, &files)) die("16,064 open files are needed");
    if ((epoll = epoll_create1(0)) < 0) die("epoll_create1");
    for (int i = 0; i < OPEN_FIRST; i++) {
        connection *c = &connections[opened++];
        *c = (connection){.fd = -1, .row = -1, .reply = malloc(REPLY_BYTES + 1)};
        if (!open_connection(c)) die("connect");
        set_free(c);
    }
    began = now() + 0.05;
    double end = began + (rows ? arrivals[rows - 1] : 0) + patience;
    struct epoll_event events[EVENTS];
    while (left > 0) {
        double t = now();
        if (t > end) break;
        while (waiting < rows && began + arrivals[waiting] <= t) {
            if (waiting != blocked) lag = fmax(lag, t - began - arrivals[waiting]);
            if (!send_row(waiting)) {
                blocked = waiting;  /* too many are under way: that is the server's doing, not ours */
                break;
            }
            waiting++;
        }
        double next = waiting < rows ? began + arrivals[waiting] : end;
        double sleep = fmin(fmax(0, next - now()), 0.1);
        if (waiting < rows && next <= t) sleep = 0.001;  /* no connection is free */
        struct timespec timeout = {(time_t)sleep, (long)(1e9 * (sleep - (time_t)sleep))};
        int ready = epoll_pwait2(epoll, events, EVENTS, &timeout, NULL);
        for (int i = 0; i < ready; i++) {
            connection *c = &connections[events[i].data.u32];
            if (c->fd < 0) continue;
            if (events[i].events & EPOLLOUT && c->row >= 0) {
                watch(c, EPOLLIN, EPOLL_CTL_MOD);
                write_request(c);
            }
            if (c->fd >= 0 && events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) read_reply(c);
        }
    }
    for (long row = 0; row < rows; row++) {
        double outcome[2] = {latencies[row], statuses[row]};
        fwrite(outcome, sizeof outcome, 1, stdout);
    }
    double last[2] = {lag, opened};
    fwrite(last, sizeof last, 1, stdout);
    return fflush(stdout) ? 1 : 0;
}
