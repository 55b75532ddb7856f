/*-------------------------------------------------------------------------
 *
 * store.c
 *	  Stores noted keys for `ml-udf score --watch`: what a commit notes in the
 *	  session's ring (ring.c) where it can, and else in ml_udf's tables.
 *
 *	  _new_note	what a commit notes: unlogged, without index and number, so
 *				that a transaction of one row pays for one short tuple.  A
 *				crash empties it; whoever gathers it finds that out by the
 *				mark in _marked that went along, and has whole tables looked at
 *	  _note		what is noted before, or outlives a crash without its commit
 *
 * Written directly, without a statement: it is done once in each transaction
 * of one row.  Whoever writes to a watched table needs no right on ml_udf's,
 * so no rights and no row security are looked at here.  Instead a note is
 * stored only by a transaction that has written, or could write, to the table
 * that is watched: it holds a lock that nobody else gets.  Where the watch is
 * gone, say after a restore of the schema alone, nothing is stored.
 *
 *-------------------------------------------------------------------------
 */
#include "note.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "compat.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#define SCHEMA "ml_udf"

/* Columns of _new_note, as the extension makes it */
enum
{
	NEW_WATCH,
	NEW_NOTED_AT,
	NEW_SIZE,
	NEW_KEYS,
	NEW_IDS,
	NEW_COLUMNS
};

/* Which table a watch is of.  It never changes, but for the table's end. */
typedef struct Watched
{
	int32		watch;
	Oid			relation;
	Oid			schema;			/* ml_udf's */
	Oid			new_notes;		/* InvalidOid where the extension is of before it had any */
	struct Watched *next;
} Watched;

/* Those that this session has noted for; of the session's memory */
static Watched *all_watched = NULL;


/* Whether this transaction holds a lock that writing to the table takes */
static bool
may_have_written(Oid relation)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relation);
	for (LOCKMODE mode = RowExclusiveLock; mode <= AccessExclusiveLock; mode++)
		if (lock_held_by_me(&tag, mode))
			return true;
	return false;
}

static Datum
column(HeapTuple tuple, Relation rel, const char *name)
{
	AttrNumber	at = get_attnum(RelationGetRelid(rel), name);
	bool		isnull;
	Datum		value;

	if (at == InvalidAttrNumber)
		elog(ERROR, "ml_udf: column %s of %s is missing", name, RelationGetRelationName(rel));
	value = heap_getattr(tuple, at, RelationGetDescr(rel), &isnull);
	if (isnull)
		elog(ERROR, "ml_udf: column %s of %s is NULL", name, RelationGetRelationName(rel));
	return value;
}

/* The table of a watch, read anew; InvalidOid where the watch is gone */
static Oid
read_relation(int32 watch, Oid schema)
{
	Oid			relid = get_relname_relid("_watch", schema);
	Oid			relation = InvalidOid;
	Relation	rel;
	Snapshot	snapshot;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	found;

	if (!OidIsValid(relid))
		return InvalidOid;
	rel = table_open(relid, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&key, get_attnum(relid, "id"), BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(watch));
	scan = systable_beginscan(rel, RelationGetPrimaryKeyIndex(rel), true, snapshot, 1, &key);
	found = systable_getnext(scan);
	if (HeapTupleIsValid(found))
		relation = DatumGetObjectId(column(found, rel, "relation"));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return relation;
}

/*
 * Forget what a change of a table may have made wrong.  A watch goes with its
 * triggers, which changes its table.
 */
static void
forget_watched(Datum arg, Oid changed)
{
	Watched   **link = &all_watched;

	ring_forget(changed);
	while (*link != NULL)
	{
		Watched    *entry = *link;

		if (OidIsValid(changed) && changed != entry->relation && changed != entry->new_notes)
		{
			link = &entry->next;
			continue;
		}
		*link = entry->next;
		pfree(entry);
	}
}

/* Once a session, when the module is loaded */
void
store_init(void)
{
	CacheRegisterRelcacheCallback(forget_watched, (Datum) 0);
}

/* The watch, if it is there and of a table of this transaction's; NULL else */
static const Watched *
find_watched(int32 watch)
{
	Watched    *entry;
	Oid			schema,
				relation;

	for (entry = all_watched; entry != NULL; entry = entry->next)
		if (entry->watch == watch)
			return may_have_written(entry->relation) ? entry : NULL;
	schema = get_namespace_oid(SCHEMA, true);
	if (!OidIsValid(schema))
		return NULL;
	relation = read_relation(watch, schema);
	if (!OidIsValid(relation) || !may_have_written(relation))
		return NULL;
	entry = MemoryContextAlloc(TopMemoryContext, sizeof(Watched));
	entry->watch = watch;
	entry->relation = relation;
	entry->schema = schema;
	entry->new_notes = get_relname_relid("_new_note", schema);
	entry->next = all_watched;
	all_watched = entry;
	return entry;
}

static void
set(Relation rel, Datum *values, bool *isnull, const char *name, Datum value)
{
	AttrNumber	at = get_attnum(RelationGetRelid(rel), name);

	if (at == InvalidAttrNumber)
		elog(ERROR, "ml_udf: column %s of %s is missing", name, RelationGetRelationName(rel));
	values[at - 1] = value;
	isnull[at - 1] = false;
}

/* One row of _note; `ids` 0 for none */
static void
insert(Oid schema, int32 watch, TimestampTz due_at, int size, Datum keys, Datum ids)
{
	Oid			relid = get_relname_relid("_note", schema);
	Oid			numbers = get_relname_relid("_note_id_seq", schema);
	Relation	rel;
	Datum		values[MaxHeapAttributeNumber];
	bool		isnull[MaxHeapAttributeNumber];
	TimestampTz now = GetCurrentTimestamp();
	bool		read_only = XactReadOnly;
	MemoryContext context,
				before;

	if (!OidIsValid(relid) || !OidIsValid(numbers))
		return;
	context = AllocSetContextCreate(CurrentMemoryContext, "ml_udf note", ALLOCSET_SMALL_SIZES);
	before = MemoryContextSwitchTo(context);
	/* SET TRANSACTION READ ONLY may come behind the writes that are noted */
	XactReadOnly = false;
	rel = table_open(relid, RowExclusiveLock);
	memset(isnull, true, sizeof(bool) * RelationGetNumberOfAttributes(rel));
	set(rel, values, isnull, "watch", Int32GetDatum(watch));
	set(rel, values, isnull, "due_at", TimestampTzGetDatum(due_at ? due_at : now));
	set(rel, values, isnull, "id", Int64GetDatum(nextval_internal(numbers, false)));
	set(rel, values, isnull, "noted_at", TimestampTzGetDatum(now));
	set(rel, values, isnull, "attempts", Int16GetDatum(0));
	set(rel, values, isnull, "size", Int32GetDatum(size));
	set(rel, values, isnull, "keys", keys);
	if (ids)
		set(rel, values, isnull, "ids", ids);
	CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values, isnull));
	table_close(rel, RowExclusiveLock);
	XactReadOnly = read_only;
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
}

/* One row of the table of new notes */
static void
insert_new(Oid relid, int32 watch, TimestampTz noted_at, int size, Datum keys, Datum ids)
{
	Relation	rel = table_open(relid, RowExclusiveLock);
	HeapTuple	tuple;
	Datum		values[NEW_COLUMNS];
	bool		isnull[NEW_COLUMNS] = {false};

	if (RelationGetNumberOfAttributes(rel) != NEW_COLUMNS)
		elog(ERROR, "ml_udf: %s has %d columns, not %d", RelationGetRelationName(rel),
			 RelationGetNumberOfAttributes(rel), NEW_COLUMNS);
	values[NEW_WATCH] = Int32GetDatum(watch);
	values[NEW_NOTED_AT] = TimestampTzGetDatum(noted_at);
	values[NEW_SIZE] = Int32GetDatum(size);
	values[NEW_KEYS] = keys;
	values[NEW_IDS] = ids;
	isnull[NEW_KEYS] = ids != 0;
	isnull[NEW_IDS] = ids == 0;
	tuple = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	simple_heap_insert(rel, tuple);
	heap_freetuple(tuple);
	table_close(rel, NoLock);	/* the commit releases it */
}

static ArrayType *
int8_array(const Datum *values, int count)
{
	Size		size = ARR_OVERHEAD_NONULLS(1) + count * sizeof(int64);
	ArrayType  *made = palloc(size);

	SET_VARSIZE(made, size);
	made->ndim = 1;
	made->dataoffset = 0;
	made->elemtype = INT8OID;
	ARR_DIMS(made)[0] = count;
	ARR_LBOUND(made)[0] = 1;
	for (int i = 0; i < count; i++)
		((int64 *) ARR_DATA_PTR(made))[i] = DatumGetInt64(values[i]);
	return made;
}

/*
 * Integers go as such, in `ids`: of a run that ascends by one the first and
 * the last, which `size` tells apart from two keys.
 */
static ArrayType *
ids_of(const Datum *keys, int count)
{
	int64		first = DatumGetInt64(keys[0]);
	Datum		ends[2] = {keys[0], keys[count - 1]};

	for (int i = 1; i < count; i++)
		if (DatumGetInt64(keys[i]) != first + i)
			return int8_array(keys, count);
	return int8_array(ends, Min(2, count));
}

/* One row of the table of new notes, of integers that a commit has noted before */
void
note_store_new(Oid new_notes, int32 watch, TimestampTz noted_at, const Datum *keys, int count)
{
	ArrayType  *ids = ids_of(keys, count);

	insert_new(new_notes, watch, noted_at, count, 0, PointerGetDatum(ids));
	pfree(ids);
}

/* One note of `count` keys from `first` on, at most NOTE_KEYS; at_commit: nothing comes behind it */
void
note_store(int32 watch, const NoteKeys *noted, int first, int count, bool at_commit)
{
	const Watched *watched = find_watched(watch);
	Datum	   *keys = noted->keys + first;
	ArrayType  *ids = NULL,
			   *texts = NULL;

	if (watched == NULL)
		return;
	if (at_commit && noted->are_integers && ring_add(watch, keys, count))
		return;
	if (noted->are_integers)
		ids = ids_of(keys, count);
	else
		texts = construct_array(keys, count, TEXTOID, -1, false, TYPALIGN_INT);
	if (at_commit && OidIsValid(watched->new_notes))
		insert_new(watched->new_notes, watch, GetCurrentTimestamp(), count,
				   PointerGetDatum(texts), PointerGetDatum(ids));
	else
		insert(watched->schema, watch, 0, count,
			   PointerGetDatum(texts ? texts : construct_empty_array(TEXTOID)),
			   PointerGetDatum(ids));
	pfree(texts ? texts : ids);
}

/* Note that the whole table is to be looked at: due before all others */
void
note_store_look(int32 watch)
{
	const Watched *watched = find_watched(watch);

	if (watched != NULL)
		insert(watched->schema, watch, DT_NOBEGIN, 0,
			   PointerGetDatum(construct_empty_array(TEXTOID)), 0);
}
