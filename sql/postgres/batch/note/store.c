/*-------------------------------------------------------------------------
 *
 * store.c
 *	  Stores noted keys as rows of ml_udf._note, for `ml-udf score --watch`.
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
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "commands/sequence.h"
#include "compat.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#define SCHEMA "ml_udf"
#define CHANNEL "ml_udf_watch"

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

/* Whether the watch is there for this transaction's table; wakes: its worker, where that sleeps */
static bool
is_watched(int32 watch, Oid schema, bool wakes)
{
	Oid			relid = get_relname_relid("_watch", schema);
	Relation	rel;
	Snapshot	snapshot;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	found;
	bool		is_ours = false;

	if (!OidIsValid(relid))
		return false;
	rel = table_open(relid, AccessShareLock);
	/* The latest: a worker that goes to sleep looks once more after it has said so */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&key, get_attnum(relid, "id"), BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(watch));
	scan = systable_beginscan(rel, RelationGetPrimaryKeyIndex(rel), true, snapshot, 1, &key);
	found = systable_getnext(scan);
	if (HeapTupleIsValid(found) &&
		may_have_written(DatumGetObjectId(column(found, rel, "relation"))))
	{
		is_ours = true;
		if (wakes && DatumGetBool(column(found, rel, "waits")))
			Async_Notify(CHANNEL, "");
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return is_ours;
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

/* One row; `ids` 0 for none */
static void
insert(int32 watch, TimestampTz due_at, int size, Datum keys, Datum ids, bool wakes)
{
	Oid			schema = get_namespace_oid(SCHEMA, true);
	Oid			relid,
				numbers;
	Relation	rel;
	Datum		values[MaxHeapAttributeNumber];
	bool		isnull[MaxHeapAttributeNumber];
	TimestampTz now = GetCurrentTimestamp();
	bool		read_only = XactReadOnly;

	if (!OidIsValid(schema) || !is_watched(watch, schema, wakes))
		return;
	relid = get_relname_relid("_note", schema);
	numbers = get_relname_relid("_note_id_seq", schema);
	if (!OidIsValid(relid) || !OidIsValid(numbers))
		return;
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
}

/*
 * Integers go as such, in `ids`: of a run that ascends by one the first and
 * the last, which `size` tells apart from two keys.
 */
static Datum
ids_of(const Datum *keys, int count)
{
	int64		first = DatumGetInt64(keys[0]);
	Datum		ends[2];

	for (int i = 1; i < count; i++)
		if (DatumGetInt64(keys[i]) != first + i)
			return PointerGetDatum(construct_array((Datum *) keys, count, INT8OID, sizeof(int64),
												   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	ends[0] = keys[0];
	ends[1] = keys[count - 1];
	return PointerGetDatum(construct_array(ends, Min(2, count), INT8OID, sizeof(int64),
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* One note of `count` keys from `first` on, at most NOTE_KEYS */
void
note_store(int32 watch, const NoteKeys *noted, int first, int count, bool wakes)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "ml_udf note",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);
	Datum	   *keys = noted->keys + first;

	if (noted->are_integers)
		insert(watch, 0, count, PointerGetDatum(construct_empty_array(TEXTOID)),
			   ids_of(keys, count), wakes);
	else
		insert(watch, 0, count,
			   PointerGetDatum(construct_array(keys, count, TEXTOID, -1, false, TYPALIGN_INT)), 0,
			   wakes);
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
}

/* Note that the whole table is to be looked at: due before all others */
void
note_store_look(int32 watch)
{
	insert(watch, DT_NOBEGIN, 0, PointerGetDatum(construct_empty_array(TEXTOID)), 0, false);
}
