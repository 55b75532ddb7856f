/* SipHash-2-4 with a result of 128 bits (Aumasson and Bernstein, 2012; the authors' extension to 128 bits): a
 * keyed hash of which nobody can find two rows alike who does not know its secret. Pure. */
#ifndef SIPHASH_H
#define SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t v0, v1, v2, v3;
} SipState;

static inline uint64_t sip_word(const void *bytes) /* of a machine whose words are little-endian */
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static inline uint64_t sip_left(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

static inline SipState sip_round(SipState s)
{
    s.v0 += s.v1, s.v1 = sip_left(s.v1, 13) ^ s.v0, s.v0 = sip_left(s.v0, 32);
    s.v2 += s.v3, s.v3 = sip_left(s.v3, 16) ^ s.v2;
    s.v0 += s.v3, s.v3 = sip_left(s.v3, 21) ^ s.v0;
    s.v2 += s.v1, s.v1 = sip_left(s.v1, 17) ^ s.v2, s.v2 = sip_left(s.v2, 32);
    return s;
}

static inline SipState sip_take(SipState s, uint64_t word)
{
    s.v3 ^= word;
    s = sip_round(sip_round(s));
    s.v0 ^= word;
    return s;
}

static inline SipState sip_begin(const unsigned char secret[16])
{
    uint64_t first = sip_word(secret), second = sip_word(secret + 8);
    return (SipState){first ^ 0x736f6d6570736575, second ^ 0x646f72616e646f6d ^ 0xee, first ^ 0x6c7967656e657261,
                      second ^ 0x7465646279746573};
}

/* before: bytes that were taken already, a multiple of 8. */
static inline void sip_end(SipState s, const unsigned char *row, size_t size, size_t before, unsigned char hash[16])
{
    size_t whole = size & ~(size_t)7;
    for (size_t at = 0; at < whole; at += 8)
        s = sip_take(s, sip_word(row + at));
    uint64_t last = (uint64_t)(before + size) << 56;
    for (size_t at = whole; at < size; at++)
        last |= (uint64_t)row[at] << 8 * (at - whole);
    s = sip_take(s, last);
    s.v2 ^= 0xee;
    s = sip_round(sip_round(sip_round(sip_round(s))));
    uint64_t half = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    memcpy(hash, &half, sizeof half);
    s.v1 ^= 0xdd;
    s = sip_round(sip_round(sip_round(sip_round(s))));
    half = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    memcpy(hash + 8, &half, sizeof half);
}

#endif
