/*-------------------------------------------------------------------------
 *
 * ring.c
 *	  What commits have noted, in memory that the sessions of a database share.
 *
 * A row of a table for each commit of one row costs more than the rest of the
 * watch together.  So a note of integers goes to a ring of the session's own,
 * in a file that all sessions map: it is written before the commit, and
 * published behind it, when the rows that it names are to be seen by whoever
 * takes the note.  Publishing is one store to memory, and cannot fail.
 * Whoever gathers notes reads all rings; only when his transaction has
 * committed do they forget what he took.  A session whose ring is full moves
 * it to _new_note itself, as part of a transaction that is about to commit.
 * Two who move the same note make it twice, which does no harm.
 *
 * The file stands beside those of PostgreSQL's own shared memory, where no
 * backup takes it along, and holds good where the row of _rings names it:
 *
 *	  - a crash empties _rings, which is not logged, with the marks of watches:
 *		whole tables are looked at, and other rings are made
 *	  - a clean stop leaves both.  Nobody writes the file to the disk, so what
 *		it says is believed as long as the machine has not started anew
 *	  - a copy of the database, by CREATE DATABASE or pg_upgrade, names a file
 *		of its own that is not there
 *
 * In these cases, and where the system has no such memory, notes go to
 * _new_note.  Rings that are named and gone are lost: _gather_notes() then has
 * whole tables looked at.
 *
 *-------------------------------------------------------------------------
 */
#include "note.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/dsm_impl.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(ml_udf_make_rings);
PG_FUNCTION_INFO_V1(ml_udf_ring_notes);
PG_FUNCTION_INFO_V1(ml_udf_take_ring_notes);
#pragma GCC visibility pop

#define RINGS_MAGIC 0x6d6c7572

/*
 * Of the file's form.  Who finds another one leaves it alone, and notes in the
 * table: sessions of a module that was replaced beside them go on.
 */
#define RINGS_VERSION 1

#define PAGE_BYTES 4096
#define RINGS 255				/* sessions beyond that note in the table */
#define RING_NOTES 124
#define BOOT_BYTES 36

/* A session that found no free ring tries again after so many notes */
#define CLAIM_EVERY 64

/* How long nobody tries again to make a file that could not be made */
#define MAKE_AGAIN_MS 60000

#define FILE_PREFIX "ml_udf."

/* As a row of _new_note: one key, two, or a run of more */
typedef struct RingNote
{
	TimestampTz noted_at;
	int32		watch;
	int32		size;
	int64		first;
	int64		last;
} RingNote;

/* Notes are counted from the file's beginning: the one at n stands at n % RING_NOTES */
typedef struct Ring
{
	pg_atomic_uint32 owner;		/* the session's pid; 0: free, but for what it holds */
	uint32		unused;
	pg_atomic_uint64 tail;		/* behind the last published; the owner's alone */
	char		apart[48];
	pg_atomic_uint64 head;		/* the first that nobody has moved for good */
	uint64		moved_from;		/* where the head was before */
	TimestampTz moved_at;
	TransactionId moved_by;		/* 0: who stored nothing */
	char		apart_too[36];
	RingNote	notes[RING_NOTES];
} Ring;

typedef struct Rings
{
	uint32		magic;			/* here in every version, as are the next two */
	uint32		version;
	char		boot[BOOT_BYTES];	/* of the machine, when it was made */
	Oid			database;
	uint64		number;			/* as _rings and the file's name have it */
	pg_atomic_uint32 used;		/* rings from here on were never anybody's */
	char		unused[PAGE_BYTES - 60];
	Ring		rings[RINGS];
} Rings;

StaticAssertDecl(sizeof(Ring) == PAGE_BYTES, "a ring is a page");
StaticAssertDecl(sizeof(Rings) == (RINGS + 1) * PAGE_BYTES, "the header is a page");

typedef enum Found
{
	RINGS_NONE,					/* none are named, or they are not to be had */
	RINGS_LOST,					/* named, and gone */
	RINGS_MAPPED
} Found;

/* Of the session */
static Rings *rings = NULL;
static Ring *mine = NULL;
static uint64 changes = 1;		/* of what decides which rings are the right ones */
static uint64 checked = 0;		/* how many there had been when `rings` were the right ones, or none were */
static bool is_writable = false;	/* a crash takes what they hold with the marks */
static Oid	rings_table = InvalidOid;
static Oid	new_notes_table = InvalidOid;
static uint32 claims = 0;
static TimestampTz not_made_at = 0;

/* Of the running transaction, done when it has committed */
static uint64 pending = 0;		/* notes behind the tail of `mine` */
static uint64 stored_to = 0;	/* of `mine`, in _new_note; 0: nothing */
static uint64 *taken_to = NULL; /* of each ring; NULL: nothing */


static void
release_ring(int code, Datum arg)
{
	if (mine != NULL)
	{
		pg_memory_barrier();
		pg_atomic_write_u32(&mine->owner, 0);
	}
	mine = NULL;
}

static void
unmap(void)
{
	release_ring(0, (Datum) 0);
	if (rings != NULL)
		munmap(rings, sizeof(Rings));
	rings = NULL;
}

/* Of this start of the machine; false where it is not told */
static bool
read_boot(char *boot)
{
	FILE	   *file = AllocateFile("/proc/sys/kernel/random/boot_id", "r");
	bool		is_read;

	if (file == NULL)
		return false;
	is_read = fread(boot, 1, BOOT_BYTES, file) == BOOT_BYTES;
	FreeFile(file);
	return is_read;
}

static void
name_file(char *path, uint64 number)
{
	snprintf(path, MAXPGPATH, "%s/%s%u." UINT64_FORMAT,
			 PG_DYNSHMEM_DIR, FILE_PREFIX, MyDatabaseId, number);
}

/* Map the file that is open, or say why not in errno */
static Rings *
map_file(int fd)
{
	void	   *found = mmap(NULL, sizeof(Rings), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return found == MAP_FAILED ? NULL : found;
}

static Found
map_rings(uint64 number)
{
	char		path[MAXPGPATH],
				boot[BOOT_BYTES];
	struct stat status;
	Rings	   *found;
	bool		is_of_now;
	int			fd;

	if (!read_boot(boot))
		return errno == ENOENT ? RINGS_LOST : RINGS_NONE;
	name_file(path, number);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0)
		return errno == ENOENT ? RINGS_LOST : RINGS_NONE;
	if (fstat(fd, &status) != 0 || status.st_size != sizeof(Rings))
	{
		CloseTransientFile(fd);
		return RINGS_LOST;
	}
	found = map_file(fd);
	CloseTransientFile(fd);
	if (found == NULL)
		return RINGS_NONE;
	is_of_now = found->magic == RINGS_MAGIC && memcmp(found->boot, boot, BOOT_BYTES) == 0;
	if (is_of_now && found->version == RINGS_VERSION &&
		found->number == number && found->database == MyDatabaseId)
	{
		rings = found;
		return RINGS_MAPPED;
	}
	is_of_now = is_of_now && found->version != RINGS_VERSION;
	munmap(found, sizeof(Rings));
	return is_of_now ? RINGS_NONE : RINGS_LOST;
}

/* The number of the rings that are named; false: none are */
static bool
read_number(uint64 *number)
{
	Relation	rel = table_open(rings_table, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	found = systable_getnext(scan);
	bool		isnull = true;

	if (HeapTupleIsValid(found))
		*number = DatumGetInt64(heap_getattr(found, 1, RelationGetDescr(rel), &isnull));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return !isnull;
}

/*
 * Find the rings that _rings names now.  Those that the running transaction
 * has something to do with stay until its end.
 */
static Found
find_rings(bool *are_named)
{
	Oid			schema;
	uint64		number,
				before = changes;
	Found		found = RINGS_MAPPED;

	*are_named = true;
	if (rings != NULL && (checked == changes || pending > 0 || stored_to > 0 || taken_to != NULL))
		return RINGS_MAPPED;
	schema = get_namespace_oid("ml_udf", true);
	rings_table = OidIsValid(schema) ? get_relname_relid("_rings", schema) : InvalidOid;
	new_notes_table = OidIsValid(schema) ? get_relname_relid("_new_note", schema) : InvalidOid;
	is_writable = OidIsValid(rings_table) && OidIsValid(new_notes_table) &&
		get_rel_persistence(rings_table) == RELPERSISTENCE_UNLOGGED &&
		get_rel_persistence(new_notes_table) == RELPERSISTENCE_UNLOGGED;
	*are_named = OidIsValid(rings_table) && read_number(&number);
	if (!*are_named || rings == NULL || rings->number != number)
	{
		unmap();
		found = *are_named ? map_rings(number) : RINGS_NONE;
	}
	checked = before;			/* nothing has failed half-way */
	return found;
}

/* A change of a table may have made another ring the right one */
void
ring_forget(Oid changed)
{
	if (!OidIsValid(changed) || !OidIsValid(rings_table) ||
		changed == rings_table || changed == new_notes_table)
		changes++;
}

/* Have a ring of the session's own, if one is free */
static bool
claim_ring(void)
{
	static bool releases = false;

	if (claims++ % CLAIM_EVERY != 0)
		return false;
	if (!releases)
		on_shmem_exit(release_ring, (Datum) 0);
	releases = true;
	for (int i = 0; i < RINGS; i++)
	{
		Ring	   *ring = &rings->rings[i];
		uint32		nobody = 0,
					used = pg_atomic_read_u32(&rings->used);

		if (pg_atomic_read_u32(&ring->owner) != 0 ||
			!pg_atomic_compare_exchange_u32(&ring->owner, &nobody, MyProcPid))
			continue;
		while (used <= i && !pg_atomic_compare_exchange_u32(&rings->used, &used, i + 1))
			;
		mine = ring;
		claims = 0;
		return true;
	}
	return false;
}

/* Forget what somebody has moved for good.  Nobody but a reader of sizes asks for the rest. */
static void
free_to(Ring *ring, uint64 to)
{
	uint64		head = pg_atomic_read_u64(&ring->head);

	if (head >= to)
		return;
	ring->moved_from = head;
	ring->moved_by = GetTopTransactionIdIfAny();
	ring->moved_at = GetCurrentTimestamp();
	while (head < to && !pg_atomic_compare_exchange_u64(&ring->head, &head, to))
		;
}

static int
keys_of(const RingNote *note, Datum *keys)
{
	if (note->size <= 2)
	{
		keys[0] = Int64GetDatum(note->first);
		keys[note->size - 1] = Int64GetDatum(note->last);
	}
	else
		for (int i = 0; i < note->size; i++)
			keys[i] = Int64GetDatum(note->first + i);
	return note->size;
}

/* Move what the session's ring holds to _new_note, one row for up to NOTE_KEYS keys of a watch */
static void
store_mine(void)
{
	uint64		head = pg_atomic_read_u64(&mine->head),
				tail = pg_atomic_read_u64(&mine->tail);
	bool		is_stored[RING_NOTES] = {false};
	Datum	   *keys = palloc(NOTE_KEYS * sizeof(Datum));

	for (uint64 at = head; at < tail; at++)
	{
		const RingNote *first = &mine->notes[at % RING_NOTES];
		int			count = 0;

		if (is_stored[at % RING_NOTES])
			continue;
		for (uint64 other = at; other < tail; other++)
		{
			const RingNote *note = &mine->notes[other % RING_NOTES];
			bool	   *stored = &is_stored[other % RING_NOTES];

			if (*stored || note->watch != first->watch || count + note->size > NOTE_KEYS)
				continue;
			count += keys_of(note, keys + count);
			*stored = true;
		}
		note_store_new(new_notes_table, first->watch, first->noted_at, keys, count);
	}
	pfree(keys);
	stored_to = tail;
}

/*
 * Note keys for the commit that comes; false if they are to be stored in a
 * table.  Behind a failure nothing is published.
 */
bool
ring_add(int32 watch, const Datum *keys, int count)
{
	int64		first = DatumGetInt64(keys[0]);
	bool		are_named;
	RingNote   *note;
	uint64		tail;

	for (int i = 1; i < count && count > 2; i++)
		if (DatumGetInt64(keys[i]) != first + i)
			return false;
	if (checked != changes)
		find_rings(&are_named);
	if (rings == NULL || !is_writable || (mine == NULL && !claim_ring()))
		return false;
	tail = pg_atomic_read_u64(&mine->tail) + pending;
	if (tail - pg_atomic_read_u64(&mine->head) >= RING_NOTES)
	{
		if (stored_to == 0)
			store_mine();
		return false;
	}
	pg_memory_barrier();		/* who moved what stood here has read it */
	note = &mine->notes[tail % RING_NOTES];
	note->watch = watch;
	note->size = count;
	note->first = first;
	note->last = DatumGetInt64(keys[count - 1]);
	pending++;
	return true;
}

static void
publish(void)
{
	uint64		tail = pg_atomic_read_u64(&mine->tail);
	TimestampTz now = GetCurrentTransactionStopTimestamp();

	for (uint64 at = tail; at < tail + pending; at++)
		mine->notes[at % RING_NOTES].noted_at = now;
	pg_write_barrier();
	pg_atomic_write_u64(&mine->tail, tail + pending);
}

/* The transaction has ended.  May not fail. */
void
ring_end(bool committed)
{
	if (committed && pending > 0)
		publish();
	if (committed && stored_to > 0)
		free_to(mine, stored_to);
	if (taken_to != NULL)
	{
		for (int i = 0; i < RINGS && committed; i++)
			free_to(&rings->rings[i], taken_to[i]);
		pfree(taken_to);
		taken_to = NULL;
	}
	pending = stored_to = 0;
}

/* What was taken may have been moved by the subtransaction that is rolled back */
static void
at_subtransaction_end(SubXactEvent event, SubTransactionId mine_id, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB && taken_to != NULL)
	{
		pfree(taken_to);
		taken_to = NULL;
	}
}

/* Once a session, when the module is loaded */
void
ring_init(void)
{
	RegisterSubXactCallback(at_subtransaction_end, NULL);
}

/* Take away files of this database that nobody names, and those of databases that are gone */
static void
remove_others(uint64 number)
{
	DIR		   *folder = AllocateDir(PG_DYNSHMEM_DIR);
	struct dirent *entry;

	while ((entry = ReadDirExtended(folder, PG_DYNSHMEM_DIR, LOG)) != NULL)
	{
		char		path[MAXPGPATH];
		unsigned int database;
		unsigned long long its_number;

		if (sscanf(entry->d_name, FILE_PREFIX "%u.%llu", &database, &its_number) != 2 ||
			(database == MyDatabaseId ? its_number == number :
			 SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database))))
			continue;
		snprintf(path, MAXPGPATH, "%s/%s", PG_DYNSHMEM_DIR, entry->d_name);
		if (unlink(path) != 0 && errno != ENOENT)
			ereport(LOG, (errcode_for_file_access(),
						  errmsg("ml_udf: could not remove file \"%s\": %m", path)));
	}
	FreeDir(folder);
}

/* A file of its whole size, so that nobody finds the disk full behind a commit; false: a warning says why not */
static bool
make_file(uint64 number, const char *boot)
{
	char		path[MAXPGPATH];
	Rings	   *made = NULL;
	int			failure = 0,
				fd;

	name_file(path, number);
	fd = OpenTransientFilePerm(path, O_RDWR | O_CREAT | O_EXCL | PG_BINARY, S_IRUSR | S_IWUSR);
	if (fd < 0)
		failure = errno;
	else
	{
		do
			failure = posix_fallocate(fd, 0, sizeof(Rings));
		while (failure == EINTR);
		if (failure == 0 && (made = map_file(fd)) == NULL)
			failure = errno;
		CloseTransientFile(fd);
	}
	if (made == NULL)
	{
		if (fd >= 0)
			unlink(path);
		errno = failure;
		ereport(WARNING,
				(errcode_for_file_access(),
				 errmsg("ml_udf: could not make file \"%s\" of %zu bytes: %m", path, sizeof(Rings)),
				 errdetail("What commits note for watches goes to the table ml_udf._new_note, which costs them more."),
				 errhint("Free space on the disk of the data directory; it is tried again every minute.")));
		return false;
	}
	made->version = RINGS_VERSION;
	made->number = number;
	made->database = MyDatabaseId;
	memcpy(made->boot, boot, BOOT_BYTES);
	made->magic = RINGS_MAGIC;
	munmap(made, sizeof(Rings));
	return true;
}

static void
name_rings(uint64 number)
{
	Relation	rel = table_open(rings_table, RowExclusiveLock);
	Datum		value = Int64GetDatum((int64) number);
	bool		isnull = false;

	simple_heap_insert(rel, heap_form_tuple(RelationGetDescr(rel), &value, &isnull));
	CacheInvalidateRelcache(rel);	/* sessions that had found none look again */
	table_close(rel, NoLock);
}

/* () where there are no rings they are made; false: those that there were are lost */
Datum
ml_udf_make_rings(PG_FUNCTION_ARGS)
{
	char		boot[BOOT_BYTES];
	bool		are_named;
	uint64		number;
	Found		found = find_rings(&are_named);

	if (are_named || !is_writable || !read_boot(boot))
		PG_RETURN_BOOL(found != RINGS_LOST);
#ifndef USE_FLOAT8_BYVAL
	PG_RETURN_BOOL(true);
#endif
	if (not_made_at != 0 &&
		!TimestampDifferenceExceeds(not_made_at, GetCurrentTimestamp(), MAKE_AGAIN_MS))
		PG_RETURN_BOOL(true);
	/* To the transaction's end: who comes next sees the row, or that there is none */
	if (!ConditionalLockRelationOid(rings_table, ShareUpdateExclusiveLock) ||
		read_number(&number))
		PG_RETURN_BOOL(true);
	if (!pg_strong_random(&number, sizeof(number)))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
						errmsg("ml_udf: the system gave no random number")));
	number &= PG_INT64_MAX;
	remove_others(number);
	if (make_file(number, boot))
		name_rings(number);
	else
		not_made_at = GetCurrentTimestamp();
	PG_RETURN_BOOL(true);
}

/* Whether nobody else takes notes; he who does holds it until his transaction ends */
static bool
lock_taking(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, RelationRelationId, rings_table, 1);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

static void
put_note(ReturnSetInfo *result, const RingNote *note, bool with_ids)
{
	Datum		values[4] = {Int32GetDatum(note->watch), TimestampTzGetDatum(note->noted_at),
	Int32GetDatum(note->size)};
	bool		isnull[4] = {false};
	Datum		ids[2] = {Int64GetDatum(note->first), Int64GetDatum(note->last)};

	if (with_ids)
		values[3] = PointerGetDatum(construct_array(ids, Min(2, note->size), INT8OID, sizeof(int64),
													true, TYPALIGN_DOUBLE));
	tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
}

/*
 * Where a note was moved to, the statement's snapshot may show what was there
 * before: then the sizes shown are those of before, too.  The time tells a
 * transaction of now from one whose number has come round again.
 */
static uint64
shown_from(const Ring *ring, uint64 head)
{
	TimestampTz seen_at = IsolationUsesXactSnapshot() ?
		GetCurrentTransactionStartTimestamp() : GetCurrentStatementStartTimestamp();

	return ring->moved_at >= seen_at && XidInMVCCSnapshot(ring->moved_by, GetActiveSnapshot()) ?
		Min(head, ring->moved_from) : head;
}

static void
put_ring(ReturnSetInfo *result, int which, bool takes)
{
	Ring	   *ring = &rings->rings[which];
	uint64		tail = pg_atomic_read_u64(&ring->tail),
				from;

	pg_read_barrier();
	from = pg_atomic_read_u64(&ring->head);
	from = takes ? Max(from, taken_to[which]) : shown_from(ring, from);
	for (uint64 at = from; at < tail; at++)
	{
		RingNote	note = ring->notes[at % RING_NOTES];

		pg_read_barrier();
		/* Its owner may have moved it meanwhile, and written another one in its place */
		if (takes && pg_atomic_read_u64(&ring->head) > at)
			continue;
		if (note.size >= 1 && note.size <= NOTE_KEYS)
			put_note(result, &note, takes);
	}
	if (takes)
		taken_to[which] = Max(taken_to[which], tail);
}

static bool
hold_any(void)
{
	uint32		used = pg_atomic_read_u32(&rings->used);

	for (int i = 0; i < Min(used, RINGS); i++)
		if (pg_atomic_read_u64(&rings->rings[i].head) != pg_atomic_read_u64(&rings->rings[i].tail))
			return true;
	return false;
}

static Datum
notes_of_rings(FunctionCallInfo fcinfo, bool takes)
{
	bool		are_named;

	InitMaterializedSRF(fcinfo, 0);
	if (find_rings(&are_named) != RINGS_MAPPED || (takes && (!hold_any() || !lock_taking())))
		return (Datum) 0;
	if (takes && taken_to == NULL)
		taken_to = MemoryContextAllocZero(TopMemoryContext, RINGS * sizeof(uint64));
	for (int i = 0; i < Min(pg_atomic_read_u32(&rings->used), RINGS); i++)
		put_ring((ReturnSetInfo *) fcinfo->resultinfo, i, takes);
	return (Datum) 0;
}

/* () as rows of _new_note, and as if deleted there: gone when the transaction commits */
Datum
ml_udf_take_ring_notes(PG_FUNCTION_ARGS)
{
	return notes_of_rings(fcinfo, true);
}

/* () how much is noted, and when, without the keys */
Datum
ml_udf_ring_notes(PG_FUNCTION_ARGS)
{
	return notes_of_rings(fcinfo, false);
}
