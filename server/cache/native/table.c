/* See answers.h. */
#include "answers.h"

#include <Python.h>
#include <string.h>

enum {
    LARGEST = 8,              /* of the bound: an answer that takes more than this part of it is not kept */
    FIRST_PLACES = 8,         /* of a part */
    LEAST_PARTS = 16,
    MOST_PARTS = 65536,
    PART_BYTES = 1 << 20,     /* of the bound, for each part: it grows in some tenths of a millisecond */
    SMALL_OF = 10,            /* of the bytes, one part is the small queue's: the paper's */
    TO_MAIN = 2,              /* times asked */
    GHOST_BYTES = 256,        /* of the capacity for each place */
    LEAST_GHOSTS = 1024,
    CLOCK_BITS = 20,          /* steps of the ghosts' clock in the time that one is remembered */
};

#ifdef EXTENSION_FAULTS
long answers_allocations_left = -1;

static int has_memory(void)
{
    if (answers_allocations_left > 0)
        answers_allocations_left--;
    return answers_allocations_left != 0;
}
#else
static int has_memory(void) { return 1; }
#endif

/* Of Python's raw memory, which tracemalloc counts. */
void *answers_malloc(size_t size) { return has_memory() ? PyMem_RawMalloc(size) : NULL; }

void *answers_realloc(void *old, size_t size) { return has_memory() ? PyMem_RawRealloc(old, size) : NULL; }

static void *zeroed(size_t count, size_t size) { return has_memory() ? PyMem_RawCalloc(count, size) : NULL; }

void entry_free(Entry *entry) { PyMem_RawFree(entry); }

uint64_t entry_bytes(const Entry *entry) { return ENTRY_BYTES + (uint64_t)entry->size; }

uint32_t entry_source(const Entry *entry)
{
    const unsigned char *row = entry->row;
    return row[0] | (uint32_t)row[1] << 8 | (uint32_t)row[2] << 16 | (uint32_t)row[3] << 24;
}

/* ── ghosts ───────────────────────────────────────────────────────────────────────────────────────── */

static int ghosts_open(Ghosts *ghosts, uint64_t capacity_bytes)
{
    uint64_t places = LEAST_GHOSTS;
    while (places < capacity_bytes / GHOST_BYTES)
        places <<= 1;
    ghosts->step_bytes = capacity_bytes >> CLOCK_BITS ? capacity_bytes >> CLOCK_BITS : 1;
    ghosts->steps = capacity_bytes / ghosts->step_bytes;
    ghosts->left_bytes = ghosts->step_bytes; /* in all; the time of an empty place is 0 */
    ghosts->mask = places - 1;
    ghosts->prints = zeroed(places, sizeof *ghosts->prints);
    ghosts->times = zeroed(places, sizeof *ghosts->times);
    return ghosts->prints == NULL || ghosts->times == NULL ? -1 : 0;
}

static uint64_t noise_of(const unsigned char *key)
{
    uint64_t noise;
    memcpy(&noise, key, sizeof noise);
    return noise;
}

static void ghosts_remember(Ghosts *ghosts, const Entry *entry)
{
    ghosts->left_bytes += entry_bytes(entry);
    uint64_t noise = noise_of(entry->key), place = noise & ghosts->mask;
    ghosts->prints[place] = (uint32_t)(noise >> 24);
    ghosts->times[place] = (uint32_t)(ghosts->left_bytes / ghosts->step_bytes);
}

/* Whether it left of late; it is then no longer remembered. */
static int ghosts_recall(Ghosts *ghosts, const unsigned char *key)
{
    if (ghosts->left_bytes == ghosts->step_bytes)
        return 0; /* nothing has left */
    uint64_t noise = noise_of(key), place = noise & ghosts->mask;
    uint32_t time = ghosts->times[place];
    if (time == 0 || ghosts->prints[place] != (uint32_t)(noise >> 24))
        return 0;
    ghosts->times[place] = 0;
    return (uint32_t)(ghosts->left_bytes / ghosts->step_bytes - time) < ghosts->steps;
}

/* ── queues ───────────────────────────────────────────────────────────────────────────────────────── */

static void queue_put(Queue *queue, Entry *entry)
{
    entry->newer = NULL;
    entry->older = queue->newest;
    *(queue->newest == NULL ? &queue->oldest : &queue->newest->newer) = entry;
    queue->newest = entry;
}

static void queue_take(Queue *queue, Entry *entry)
{
    *(entry->older == NULL ? &queue->oldest : &entry->older->newer) = entry->newer;
    *(entry->newer == NULL ? &queue->newest : &entry->newer->older) = entry->older;
}

static void to_main(Table *table, Entry *entry)
{
    entry->is_main = 1;
    queue_put(&table->main, entry);
}

static void to_small(Table *table, Entry *entry)
{
    entry->is_main = 0;
    table->small_bytes += entry_bytes(entry);
    queue_put(&table->small, entry);
}

static void unqueue(Table *table, Entry *entry)
{
    if (entry->is_main) {
        queue_take(&table->main, entry);
    } else {
        queue_take(&table->small, entry);
        table->small_bytes -= entry_bytes(entry);
    }
}

/* ── the table ────────────────────────────────────────────────────────────────────────────────────── */

int table_open(Table *table, uint64_t capacity_bytes)
{
    size_t parts = LEAST_PARTS;
    int bits = 4;
    while (parts < MOST_PARTS && parts < capacity_bytes / PART_BYTES)
        parts <<= 1, bits++;
    *table = (Table){.capacity_bytes = capacity_bytes, .parts = parts, .shift = 64 - bits};
    table->most_small_bytes = capacity_bytes / SMALL_OF;
    table->part = zeroed(parts, sizeof *table->part);
    if (table->part == NULL || ghosts_open(&table->ghosts, capacity_bytes - table->most_small_bytes) < 0) {
        table_close(table);
        return -1;
    }
    return 0;
}

void table_clear(Table *table)
{
    for (size_t number = 0; table->part != NULL && number < table->parts; number++) {
        Part *part = &table->part[number];
        for (size_t place = 0; place < part->places; place++)
            entry_free(part->slots[place].entry);
        PyMem_RawFree(part->slots);
        *part = (Part){0};
    }
    table->small = table->main = (Queue){0};
    table->nbytes = table->small_bytes = 0;
    table->count = 0;
}

void table_close(Table *table)
{
    table_clear(table);
    PyMem_RawFree(table->part);
    PyMem_RawFree(table->ghosts.prints);
    PyMem_RawFree(table->ghosts.times);
    *table = (Table){0};
}

/* Keys are hashes; a multiplication spreads those that are none. */
uint64_t tag_of(const unsigned char *key)
{
    uint64_t low, high;
    memcpy(&low, key, sizeof low);
    memcpy(&high, key + sizeof low, sizeof high);
    low = (low ^ (high << 32 | high >> 32)) * 0x9e3779b97f4a7c15;
    return low ^ low >> 32;
}

static Part *part_of(const Table *table, uint64_t tag) { return &table->part[tag >> table->shift]; }

void table_expect(const Table *table, uint64_t tag)
{
    const Part *part = part_of(table, tag);
    if (part->places)
        __builtin_prefetch(&part->slots[tag & (part->places - 1)]);
}

Entry *table_guess(const Table *table, uint64_t tag)
{
    const Part *part = part_of(table, tag);
    if (part->places == 0)
        return NULL;
    size_t mask = part->places - 1;
    for (size_t place = tag & mask; part->slots[place].entry != NULL; place = (place + 1) & mask)
        if (part->slots[place].tag == tag)
            return part->slots[place].entry;
    return NULL;
}

Entry *table_find(const Table *table, uint64_t tag, const unsigned char *key)
{
    const Part *part = part_of(table, tag);
    if (part->places == 0)
        return NULL;
    size_t mask = part->places - 1;
    for (size_t place = tag & mask; part->slots[place].entry != NULL; place = (place + 1) & mask) {
        const Slot *slot = &part->slots[place];
        if (slot->tag == tag && memcmp(slot->entry->key, key, KEY_BYTES) == 0)
            return slot->entry;
    }
    return NULL;
}

static void part_put(Part *part, uint64_t tag, Entry *entry)
{
    size_t mask = part->places - 1, place = tag & mask;
    while (part->slots[place].entry != NULL)
        place = (place + 1) & mask;
    part->slots[place] = (Slot){tag, entry};
}

/* −1 where there is no memory; it is then as it was. */
static int part_resize(Part *part, size_t places)
{
    Slot *slots = zeroed(places, sizeof *slots);
    if (slots == NULL)
        return -1;
    Part resized = {slots, places, part->count};
    for (size_t place = 0; place < part->places; place++)
        if (part->slots[place].entry != NULL)
            part_put(&resized, part->slots[place].tag, part->slots[place].entry);
    PyMem_RawFree(part->slots);
    *part = resized;
    return 0;
}

static void part_remove(Part *part, uint64_t tag, const Entry *entry)
{
    size_t mask = part->places - 1, hole = tag & mask;
    while (part->slots[hole].entry != entry)
        hole = (hole + 1) & mask;
    /* Who comes after moves up, as far as it may: no place remembers that it was taken. */
    for (size_t place = (hole + 1) & mask; part->slots[place].entry != NULL; place = (place + 1) & mask) {
        size_t from = part->slots[place].tag & mask;
        if (((place - from) & mask) >= ((place - hole) & mask)) {
            part->slots[hole] = part->slots[place];
            hole = place;
        }
    }
    part->slots[hole] = (Slot){0};
    part->count--;
}

Entry *table_add(Table *table, uint64_t tag, const unsigned char *key, size_t size)
{
    if (size > UINT32_MAX || ENTRY_BYTES + (uint64_t)size > table->capacity_bytes / LARGEST ||
        table_find(table, tag, key) != NULL)
        return NULL;
    Part *part = part_of(table, tag);
    if (4 * (part->count + 1) > 3 * part->places &&
        part_resize(part, part->places ? 2 * part->places : FIRST_PLACES) < 0)
        return NULL;
    Entry *entry = answers_malloc(offsetof(Entry, row) + size);
    if (entry == NULL)
        return NULL;
    memcpy(entry->key, key, KEY_BYTES);
    entry->size = (uint32_t)size;
    entry->asked = 0;
    part_put(part, tag, entry);
    part->count++;
    table->count++;
    table->nbytes += entry_bytes(entry);
    if (ghosts_recall(&table->ghosts, key))
        to_main(table, entry);
    else
        to_small(table, entry);
    return entry;
}

void entry_hit(Entry *entry)
{
    if (entry->asked < MOST_ASKED)
        entry->asked++;
}

void table_remove(Table *table, uint64_t tag, Entry *entry)
{
    Part *part = part_of(table, tag);
    part_remove(part, tag, entry);
    if (part->places > FIRST_PLACES && 3 * part->count < part->places)
        (void)part_resize(part, part->places / 2); /* without memory it stays as large as it is */
    unqueue(table, entry);
    table->count--;
    table->nbytes -= entry_bytes(entry);
}

Entry *table_evict(Table *table, size_t *rounds)
{
    for (;;) {
        Entry *entry = table->small.oldest;
        if (entry != NULL && (table->small_bytes > table->most_small_bytes || table->main.oldest == NULL)) {
            if (entry->asked >= TO_MAIN && *rounds) {
                unqueue(table, entry);
                entry->asked = 0;
                (*rounds)--;
                to_main(table, entry);
                continue;
            }
            ghosts_remember(&table->ghosts, entry);
        } else {
            entry = table->main.oldest;
            if (entry == NULL)
                return NULL;
            if (entry->asked && *rounds) {
                unqueue(table, entry);
                entry->asked--;
                (*rounds)--;
                to_main(table, entry);
                continue;
            }
        }
        table_remove(table, tag_of(entry->key), entry);
        return entry;
    }
}
