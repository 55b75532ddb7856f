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
