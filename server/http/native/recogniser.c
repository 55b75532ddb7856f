#define _GNU_SOURCE
#include "recogniser.h"

#include <string.h>
#include <strings.h>

static const char NAME[] = "content-length:";
enum { NAME_SIZE = sizeof(NAME) - 1, MOST_DIGITS = 9 };

size_t head_end(const char *data, size_t size)
{
    const char *found = memmem(data, size, "\r\n\r\n", 4);
    return found == NULL ? 0 : (size_t)(found - data) + 4;
}

bool find_length(const char *head, size_t size, Length *found)
{
    const char *at = memchr(head, '\n', size), *end = head + size;
    while (at != NULL && ++at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (line_end == NULL)
            return false;
        if (line_end - at > NAME_SIZE && strncasecmp(at, NAME, NAME_SIZE) == 0) {
            const char *digits = at + NAME_SIZE;
            while (*digits == ' ')
                digits++;
            const char *behind = digits;
            uint64_t value = 0;
            while (*behind >= '0' && *behind <= '9' && behind - digits < MOST_DIGITS)
                value = value * 10 + (uint64_t)(*behind++ - '0');
            /* A leading zero would be lost where the head is written again from its number. */
            if (behind == digits || *digits == '0' || *behind != '\r' || behind + 1 != line_end)
                return false;
            *found = (Length){(size_t)(digits - head), (size_t)(behind - head), value};
            return true;
        }
        at = line_end;
    }
    return false;
}

static uint64_t fnv(uint64_t hash, const char *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)data[i]) * 0x100000001b3ULL;
    return hash;
}

uint64_t head_hash(const char *head, size_t size, const Length *length, const char *peer, size_t peer_size)
{
    uint64_t hash = fnv(0xcbf29ce484222325ULL, head, length->start);
    hash = fnv(hash, head + length->end, size - length->end);
    return fnv(hash, peer, peer_size);
}

static const char *const NAMES[NUMBERS] = {"\"binary_data_size\":", "\"timeout\":", "\"ml_udf_deadline_ms\":"};
enum { MOST_NUMBER_DIGITS = 15 };

/* −1 = not plain, 0 = it is not there. */
static int find_number(const char *json, size_t size, const char *name, Length *found)
{
    size_t name_size = strlen(name);
    const char *end = json + size, *at = memmem(json, size, name, name_size);
    if (at == NULL)
        return 0;
    at += name_size;
    if (memmem(at, (size_t)(end - at), name, name_size) != NULL)
        return -1;
    if (at < end && *at == ' ')
        at++;
    const char *digits = at;
    uint64_t value = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - digits < MOST_NUMBER_DIGITS)
        value = value * 10 + (uint64_t)(*at++ - '0');
    if (at == digits || at == end || *digits == '0' || (*at != ',' && *at != '}'))
        return -1;
    *found = (Length){(size_t)(digits - json), (size_t)(at - json), value};
    return 1;
}

bool find_shape(const char *json, size_t size, Shape *found)
{
    Length numbers[NUMBERS];
    int count = 0, names[NUMBERS];
    for (int name = 0; name < NUMBERS; name++) {
        Length number;
        int there = find_number(json, size, NAMES[name], &number);
        if (there < 0 || (name == 0 && there == 0))
            return false;
        if (there == 0)
            continue;
        int place = count++;
        for (; place > 0 && numbers[place - 1].start > number.start; place--) {
            numbers[place] = numbers[place - 1];
            names[place] = names[place - 1];
        }
        numbers[place] = number;
        names[place] = name;
    }
    *found = (Shape){.count = count};
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        found->piece[i] = json + at;
        found->size[i] = numbers[i].start - at;
        found->names[i] = names[i];
        found->values[i] = numbers[i].value;
        at = numbers[i].end;
    }
    found->piece[count] = json + at;
    found->size[count] = size - at;
    return true;
}

uint64_t shape_hash(const Shape *shape)
{
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (int i = 0; i <= shape->count; i++)
        hash = fnv(hash, shape->piece[i], shape->size[i]) * 31;
    return hash;
}

bool is_same_shape(const Shape *a, const Shape *b)
{
    if (a->count != b->count)
        return false;
    for (int i = 0; i <= a->count; i++)
        if (a->size[i] != b->size[i] || memcmp(a->piece[i], b->piece[i], a->size[i]) != 0 ||
            (i < a->count && a->names[i] != b->names[i]))
            return false;
    return true;
}
