/*-------------------------------------------------------------------------
 *
 * notes.c
 *	  The keys that the running transaction has noted, and has not stored.
 *
 * They wait in memory for the commit, so that a transaction of many short
 * statements stores them once.  A key too many does no harm: whoever takes
 * it looks at the row as it is then, and finds nothing to do.  So keys of a
 * subtransaction that is rolled back stay.  A key too few would leave a row
 * without its answer, so:
 *
 *	  - what is stored before the commit was noted by the subtransaction that
 *		stores it, or the transaction itself stores it: a rollback that takes
 *		the note away takes the row away, too;
 *	  - keys that must wait and become too many make way for a note that the
 *		whole table is to be looked at.
 *
 *-------------------------------------------------------------------------
 */
#include "note.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

/* Most keys of a watch that wait for a transaction's end; 8 bytes each and more */
#define WAITING_KEYS 200000

/*
 * Most keys of a watch that one subtransaction notes before some are stored: a
 * COPY of that many rows stores them where it is cheap, when it commits.  Texts
 * may be long.
 */
#define HELD_INTEGERS 50000
#define HELD_TEXTS NOTE_KEYS

/* Room for keys to begin with: most transactions write a row or a few */
#define FIRST_ROOM 8

/* What a session keeps of that for its next transaction */
#define KEPT_ROOM NOTE_KEYS
#define KEPT_WATCHES 8

typedef struct WatchNotes
{
	int32		watch;
	SubTransactionId noted_by;	/* who noted those of `recent` */
	NoteKeys	recent;
	NoteKeys	waiting;		/* of other subtransactions */
	bool		wants_look;		/* at the whole table, for keys that made way */
	struct WatchNotes *next;
} WatchNotes;

/* Those of the running transaction, and empty ones of those before; of the session's memory */
static WatchNotes *all_notes = NULL;
static MemoryContext notes_context = NULL;


static void
append(NoteKeys *list, Datum key)
{
	if (list->count == list->room)
	{
		list->room = Max(FIRST_ROOM, 2 * list->room);
		list->keys = list->keys ?
			repalloc_huge(list->keys, list->room * sizeof(Datum)) :
			MemoryContextAlloc(notes_context, list->room * sizeof(Datum));
	}
	list->keys[list->count++] = key;
}

/* Forget them; texts are ours */
static void
empty(NoteKeys *list)
{
	if (!list->are_integers)
		for (int i = 0; i < list->count; i++)
			pfree(DatumGetPointer(list->keys[i]));
	list->count = 0;
}

/* at_commit: what is noted, and its row, are there for good or not at all */
static void
store_all(WatchNotes *notes, NoteKeys *list, bool at_commit)
{
	for (int first = 0; first < list->count; first += NOTE_KEYS)
		note_store(notes->watch, list, first, Min(NOTE_KEYS, list->count - first), at_commit);
	empty(list);
}

/* Another subtransaction begins to note, or goes on */
static void
change_subtransaction(WatchNotes *notes)
{
	for (int i = 0; i < notes->recent.count; i++)
		append(&notes->waiting, notes->recent.keys[i]);
	notes->recent.count = 0;	/* its texts have moved */
	notes->noted_by = GetCurrentSubTransactionId();
	if (notes->waiting.count < NOTE_KEYS)
		return;
	if (GetCurrentTransactionNestLevel() == 1)
		store_all(notes, &notes->waiting, false);
	else if (notes->waiting.count > WAITING_KEYS)
	{
		notes->wants_look = true;
		empty(&notes->waiting);
	}
}

static WatchNotes *
notes_of(int32 watch, bool are_integers)
{
	WatchNotes *notes;

	for (notes = all_notes; notes != NULL; notes = notes->next)
		if (notes->watch == watch && notes->recent.are_integers == are_integers)
			return notes;
	if (notes_context == NULL)
		notes_context = AllocSetContextCreate(TopMemoryContext, "ml_udf notes",
											  ALLOCSET_DEFAULT_SIZES);
	notes = MemoryContextAllocZero(notes_context, sizeof(WatchNotes));
	notes->watch = watch;
	notes->noted_by = GetCurrentSubTransactionId();
	notes->recent.are_integers = notes->waiting.are_integers = are_integers;
	notes->next = all_notes;
	all_notes = notes;
	return notes;
}

/* Note a key.  A text is copied. */
void
note_add(int32 watch, bool is_integer, Datum key)
{
	WatchNotes *notes = all_notes;

	if (notes == NULL || notes->watch != watch || notes->recent.are_integers != is_integer)
		notes = notes_of(watch, is_integer);
	if (notes->noted_by != GetCurrentSubTransactionId())
		change_subtransaction(notes);
	if (notes->recent.count >= (is_integer ? HELD_INTEGERS : HELD_TEXTS))
		store_all(notes, &notes->recent, false);
	if (!is_integer)
	{
		MemoryContext before = MemoryContextSwitchTo(notes_context);

		key = PointerGetDatum(DatumGetTextPCopy(key));
		MemoryContextSwitchTo(before);
	}
	append(&notes->recent, key);
}

/* A small room for integers is kept: most transactions note in the same one again */
static void
forget_notes(void)
{
	int			count = 0;
	bool		keeps = true;

	for (WatchNotes *notes = all_notes; notes != NULL && keeps; notes = notes->next)
		keeps = notes->recent.are_integers && ++count <= KEPT_WATCHES &&
			notes->recent.room <= KEPT_ROOM && notes->waiting.room <= KEPT_ROOM;
	if (!keeps)
	{
		all_notes = NULL;
		MemoryContextReset(notes_context);
	}
	for (WatchNotes *notes = all_notes; notes != NULL; notes = notes->next)
	{
		notes->recent.count = notes->waiting.count = 0;
		notes->wants_look = false;
	}
}

static void
at_transaction_end(XactEvent event, void *arg)
{
	/* What a crash takes away would be missed by the commit of a prepared transaction behind it */
	bool		at_commit = event == XACT_EVENT_PRE_COMMIT;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			for (WatchNotes *notes = all_notes; notes != NULL; notes = notes->next)
			{
				store_all(notes, &notes->waiting, at_commit);
				store_all(notes, &notes->recent, at_commit);
				if (notes->wants_look)
					note_store_look(notes->watch);
			}
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			forget_notes();
			ring_end(event == XACT_EVENT_COMMIT);
			break;
		default:
			break;
	}
}

/* Once a session, when the module is loaded */
void
note_init(void)
{
	RegisterXactCallback(at_transaction_end, NULL);
	store_init();
	ring_init();
	condition_init();
}
