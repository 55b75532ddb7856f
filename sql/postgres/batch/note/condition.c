/*-------------------------------------------------------------------------
 *
 * condition.c
 *	  The WHEN of a watch's triggers, prepared once a session.
 *
 * PostgreSQL reads a trigger's condition from its text, and plans and prepares
 * it, in every statement that evaluates it: for a statement of one row that is
 * most of what noting its key costs.  Each table that a statement writes to has
 * room for the prepared conditions of its triggers, filled when one is first
 * evaluated.  Here those of watches are filled in when the statement begins,
 * with what this session keeps: an expression that notes the key straight from
 * the row.
 *
 * Whatever is not filled in, PostgreSQL prepares as ever, and the functions of
 * note_key.c do the same: in a session's first statement, which loads this
 * module, and in COPY, which has no beginning that could be seen.
 *
 *-------------------------------------------------------------------------
 */
#include "note.h"

#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "nodes/primnodes.h"
#include "rewrite/prs2lock.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"
#include "utils/syscache.h"

/* With which the names of a watch's triggers begin: ml_udf.scoring.watch_triggers */
#define TRIGGER_NAME "ml_udf_note_"

/* The executor evaluates its first member, which is all that it knows of it */
typedef struct Condition
{
	ExprState	state;
	char	   *text;			/* as pg_trigger has it */
	Oid			function;		/* that it calls; InvalidOid: nothing that is known here */
	bool		is_change;		/* of an updated row; else of one that came or went */
	bool		of_old;			/* of one that went */
	int32		watch;
	AttrNumber	key;
	AttrNumber	input;			/* of a change */
} Condition;

/* A trigger of a table, and what stands for its WHEN */
typedef struct Prepared
{
	int			at;				/* among the table's triggers */
	Oid			trigger;
	Condition  *condition;		/* even if it is not ours */
	bool		is_ours;
} Prepared;

typedef struct TableEntry
{
	Oid			table;			/* by which it is looked up */
	bool		is_valid;		/* the table has not changed since */
	uint64		changes;		/* how many there had been */
	int			count;
	Prepared   *prepared;
} TableEntry;

/* Of the session.  A condition is never freed: a statement may hold it. */
static HTAB *entries = NULL;
static TableEntry *last_entry = NULL;

/* Counts what may have made every entry wrong */
static uint64 changes = 0;

static ExecutorStart_hook_type prev_executor_start = NULL;


static NullableDatum
value_of(TupleTableSlot *slot, AttrNumber column)
{
	NullableDatum found;

	found.value = slot_getattr(slot, column, &found.isnull);
	return found;
}

static NoteType
type_of(TupleTableSlot *slot, AttrNumber column)
{
	Form_pg_attribute attribute = TupleDescAttr(slot->tts_tupleDescriptor, column - 1);
	NoteType	found = {attribute->atttypid, attribute->attlen, attribute->attbyval};

	return found;
}

/* Evaluates a condition: as the functions of note_key.c it notes, and says no */
static Datum
note_row(ExprState *state, ExprContext *context, bool *isnull)
{
	Condition  *condition = (Condition *) state;
	TupleTableSlot *old = context->ecxt_innertuple,
			   *new = context->ecxt_outertuple;
	AttrNumber	key = condition->key,
				input = condition->input;

	if (condition->is_change)
		note_change(condition->watch,
					type_of(new, key), value_of(old, key), value_of(new, key),
					type_of(new, input), value_of(old, input), value_of(new, input));
	else
	{
		TupleTableSlot *row = condition->of_old ? old : new;
		NullableDatum value = value_of(row, key);

		if (!value.isnull)
			note_key(condition->watch, type_of(row, key), value.value);
	}
	*isnull = false;
	return BoolGetDatum(false);
}

/* The column of the row OLD or NEW that an argument is; InvalidAttrNumber for another */
static AttrNumber
column_of(List *arguments, int at, int row)
{
	Var		   *var = list_nth(arguments, at);

	return IsA(var, Var) && var->varno == row && var->varattno > 0 ?
		var->varattno : InvalidAttrNumber;
}

/* What a condition says, if it is one that watches' triggers have */
static void
read_condition(Condition *condition)
{
	FuncExpr   *call = stringToNode(condition->text);
	Const	   *watch;
	List	   *arguments;

	if (!IsA(call, FuncExpr) || list_length(call->args) < 2)
		return;
	arguments = call->args;
	watch = linitial(arguments);
	if (!IsA(watch, Const) || watch->consttype != INT4OID || watch->constisnull)
		return;
	condition->watch = DatumGetInt32(watch->constvalue);
	if (list_length(arguments) == 5)
	{
		condition->is_change = true;
		condition->key = column_of(arguments, 2, PRS2_NEW_VARNO);
		condition->input = column_of(arguments, 4, PRS2_NEW_VARNO);
		if (condition->key == InvalidAttrNumber || condition->input == InvalidAttrNumber ||
			column_of(arguments, 1, PRS2_OLD_VARNO) != condition->key ||
			column_of(arguments, 3, PRS2_OLD_VARNO) != condition->input)
			return;
	}
	else if (list_length(arguments) == 2)
	{
		condition->key = column_of(arguments, 1, PRS2_NEW_VARNO);
		if (condition->key == InvalidAttrNumber)
		{
			condition->of_old = true;
			condition->key = column_of(arguments, 1, PRS2_OLD_VARNO);
		}
		if (condition->key == InvalidAttrNumber)
			return;
	}
	else
		return;
	condition->function = call->funcid;
}

/* For the session */
static Condition *
make_condition(const char *text)
{
	Condition  *made = MemoryContextAllocZero(TopMemoryContext, sizeof(Condition));
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "ml_udf condition",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);

	NodeSetTag(&made->state, T_ExprState);
	made->state.flags = EEO_FLAG_IS_QUAL;
	made->state.evalfunc = note_row;
	made->text = MemoryContextStrdup(TopMemoryContext, text);
	read_condition(made);
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
	return made;
}

/* Whether what it calls is this module's, and not what stands there where no module is */
static bool
calls_module(const Condition *condition)
{
	FmgrInfo	function;

	if (!OidIsValid(condition->function))
		return false;
	fmgr_info(condition->function, &function);
	return function.fn_addr == (condition->is_change ? ml_udf_note_change : ml_udf_note_key);
}

static bool
is_named_as_ours(const Trigger *trigger)
{
	return trigger->tgqual != NULL &&
		strncmp(trigger->tgname, TRIGGER_NAME, strlen(TRIGGER_NAME)) == 0;
}

/* The condition of a trigger as it was read before, or read now */
static Condition *
condition_of(const TableEntry *entry, const Trigger *trigger)
{
	for (int i = 0; i < entry->count; i++)
	{
		Prepared   *known = &entry->prepared[i];

		if (known->trigger == trigger->tgoid &&
			strcmp(known->condition->text, trigger->tgqual) == 0)
			return known->condition;
	}
	return make_condition(trigger->tgqual);
}

/*
 * Look at a table's triggers.  They stay as they are while the statement holds
 * its lock on the table; what else changes meanwhile shows in `is_valid` and
 * `changes`, set before the first look.
 */
static void
read_triggers(TableEntry *entry, const TriggerDesc *triggers)
{
	Prepared   *found = MemoryContextAllocZero(TopMemoryContext,
											   Max(1, triggers->numtriggers) * sizeof(Prepared));
	int			count = 0;
	uint64		before = changes;

	entry->is_valid = true;
	entry->changes = before - 1;	/* wrong, should this fail half-way */
	for (int i = 0; i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (!is_named_as_ours(trigger))
			continue;
		found[count].at = i;
		found[count].trigger = trigger->tgoid;
		found[count].condition = condition_of(entry, trigger);
		found[count].is_ours = calls_module(found[count].condition);
		count++;
	}
	if (entry->prepared != NULL)
		pfree(entry->prepared);
	entry->prepared = found;
	entry->count = count;
	entry->changes = before;
}

static TableEntry *
entry_of(Oid table)
{
	bool		is_known;

	if (last_entry == NULL || last_entry->table != table)
	{
		last_entry = hash_search(entries, &table, HASH_ENTER, &is_known);
		if (!is_known)
		{
			last_entry->is_valid = false;
			last_entry->count = 0;
			last_entry->prepared = NULL;
		}
	}
	return last_entry;
}

static void
prepare_conditions(ResultRelInfo *table)
{
	TriggerDesc *triggers = table->ri_TrigDesc;
	TableEntry *entry;

	if (triggers == NULL)
		return;
	entry = entry_of(RelationGetRelid(table->ri_RelationDesc));
	if (!entry->is_valid || entry->changes != changes)
		read_triggers(entry, triggers);
	for (int i = 0; i < entry->count; i++)
	{
		Prepared   *prepared = &entry->prepared[i];

		if (prepared->is_ours && prepared->at < triggers->numtriggers &&
			triggers->triggers[prepared->at].tgoid == prepared->trigger &&
			table->ri_TrigWhenExprs[prepared->at] == NULL)
			table->ri_TrigWhenExprs[prepared->at] = &prepared->condition->state;
	}
}

static void
start_executor(QueryDesc *query, int flags)
{
	ListCell   *cell;

	if (prev_executor_start)
		prev_executor_start(query, flags);
	else
		standard_ExecutorStart(query, flags);
	foreach(cell, query->estate->es_opened_result_relations)
		prepare_conditions(lfirst(cell));
}

static void
function_changed(Datum arg, int cache, uint32 hash)
{
	changes++;
}

static void
table_changed(Datum arg, Oid table)
{
	TableEntry *entry;

	if (!OidIsValid(table))
		changes++;
	else if ((entry = hash_search(entries, &table, HASH_FIND, NULL)) != NULL)
		entry->is_valid = false;
}

/* Once a session, when the module is loaded */
void
condition_init(void)
{
	HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(TableEntry)};

	entries = hash_create("ml_udf watched tables", 64, &control, HASH_ELEM | HASH_BLOBS);
	CacheRegisterSyscacheCallback(PROCOID, function_changed, (Datum) 0);
	CacheRegisterRelcacheCallback(table_changed, (Datum) 0);
	prev_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = start_executor;
}
