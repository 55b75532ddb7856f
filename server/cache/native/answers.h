/* Kept answers by key, within a bound of bytes; S3-FIFO says which leave. No Python in it. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are kept as they are written to the file: of a machine whose words are little-endian"
#endif

enum {
    KEY_BYTES = 16,
    PREFIX_BYTES = 4,  /* of a row: whose it is, see entry.py */
    MOST_ASKED = 3,    /* times that are counted */
    /* What an answer takes beside its row, at the most: the entry's head (38), malloc's (23), and three slots (48)
     * of a part that is about to shrink. */
    ENTRY_BYTES = 112,
    /* Answers that are given another round for all that leave while some come, at the most: before what is
     * oldest leaves all the same. As rules/s3fifo.py. */
    MOST_ROUNDS = 4096,
    COME_TOGETHER = 256, /* answers that come, for each of which it is so many */
};

typedef struct Entry Entry;
struct Entry {
    Entry *older, *newer; /* in its queue */
    unsigned char key[KEY_BYTES];
    uint32_t size; /* of the row */
    uint8_t asked; /* again */
    uint8_t is_main;
    unsigned char row[];
};

typedef struct {
    uint64_t tag; /* of the key */
    Entry *entry; /* NULL = free */
} Slot;

/* Keys whose tags begin alike; it grows and shrinks by itself, so that no more than a part does so at once. */
typedef struct {
    Slot *slots;
    size_t places, count; /* places: a power of two, or 0 */
} Part;

typedef struct {
    Entry *oldest, *newest;
} Queue;

/* What left of late: a fingerprint and a time in each place, and no keys. As rules/ghosts.py. */
typedef struct {
    uint32_t *prints, *times;
    uint64_t mask, step_bytes, steps, left_bytes;
} Ghosts;

typedef struct {
    uint64_t capacity_bytes, nbytes, most_small_bytes, small_bytes;
    size_t count, parts;
    int shift; /* by which a tag gives the number of its part */
    Part *part;
    Queue small, main;
    Ghosts ghosts;
} Table;

/* 0, or −1 where there is no memory. */
int table_open(Table *, uint64_t capacity_bytes);
void table_close(Table *);
/* Lets go of all entries, and of all memory that grew for them. Takes none. */
void table_clear(Table *);

uint64_t tag_of(const unsigned char *key);
/* Has the memory brought that a look for this tag begins with. */
void table_expect(const Table *, uint64_t tag);
/* NULL where there is none. */
Entry *table_find(const Table *, uint64_t tag, const unsigned char *key);
/* The entry that a look for this tag would find first, unless two tags are alike; NULL for none. */
Entry *table_guess(const Table *, uint64_t tag);

/* A new answer, whose row is to be filled in; NULL where the key has one, where the row is too large, or where
 * there is no memory: then it is not kept. */
Entry *table_add(Table *, uint64_t tag, const unsigned char *key, size_t size);
/* It is asked for again. */
void entry_hit(Entry *);
/* What leaves next; it is for the caller to free. *rounds: how many may be given another round before what is
 * oldest leaves all the same. */
Entry *table_evict(Table *, size_t *rounds);
/* Takes it out of everything; it is for the caller to free. */
void table_remove(Table *, uint64_t tag, Entry *);
uint64_t entry_bytes(const Entry *);
uint32_t entry_source(const Entry *);
void entry_free(Entry *);

/* Memory that tests can make run out. */
void *answers_malloc(size_t size);
void *answers_realloc(void *old, size_t size);
#ifdef EXTENSION_FAULTS
extern long answers_allocations_left; /* −1 = all succeed */
#endif

#endif
