/* Where a request's head ends, and the one number in it that differs between requests that are else alike.
 *
 * This reads no HTTP. A head is taken only if, but for the digits of its length, it is byte for byte one that
 * the server's own parser has read and admitted before. Pure: no Python, no sockets, no memory of its own.
 */
#ifndef ML_UDF_RECOGNISER_H
#define ML_UDF_RECOGNISER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The digits of Content-Length: head[start..end), and the number that they are. */
typedef struct {
    size_t start, end;
    uint64_t value;
} Length;

/* Bytes up to the empty line, that line included; 0 = it has not come. */
size_t head_end(const char *data, size_t size);

/* Whether a head says a body's length, from 1 on, in one plain way. */
bool find_length(const char *head, size_t size, Length *found);

/* Of a head without the digits of its length, and of the address that it came from. */
uint64_t head_hash(const char *head, size_t size, const Length *length, const char *peer, size_t peer_size);

#endif
