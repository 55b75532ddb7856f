/* Where a request's head ends, and the numbers in it and in its JSON that differ between requests else alike.
 *
 * This reads no HTTP and no JSON. A head is taken only if, but for the digits of its length, it is byte for byte one that
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

enum { NUMBERS = 3 };

/* The JSON part of a request without the numbers that differ between requests that are else alike: pieces, and
 * between each two of them a number. names[i]: 0 binary_data_size, 1 timeout, 2 ml_udf_deadline_ms. Whether they
 * are what they look like is for who reads JSON to say, once for each shape. */
typedef struct {
    const char *piece[NUMBERS + 1];
    size_t size[NUMBERS + 1];
    int count, names[NUMBERS];
    uint64_t values[NUMBERS];
} Shape;

/* False = it is not ordinary: no size of binary data, a name twice, a number that is not plain. */
bool find_shape(const char *json, size_t size, Shape *found);
uint64_t shape_hash(const Shape *shape);
bool is_same_shape(const Shape *a, const Shape *b);

/* Of a head without the digits of its length, and of the address that it came from. */
uint64_t head_hash(const char *head, size_t size, const Length *length, const char *peer, size_t peer_size);

#endif
