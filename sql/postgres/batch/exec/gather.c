/*-------------------------------------------------------------------------
 *
 * gather.c
 *	  Filling a batch: rows of the child, and the distinct inputs among them.
 *
 * A batch ends with enough inputs to send, with enough rows, with work_mem, or
 * with the child.  How much is enough depends on what is known of the
 * consumer: one that reads everything gets full batches at once; a LIMIT gets
 * exactly its rows; anybody else gets a small batch first and larger ones the
 * longer it goes on reading.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"
#include "compat.h"

#include "access/relscan.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"

/* How batches grow for a consumer that may stop */
#define BATCH_GROWTH 4

/* Rows gathered per input to send, at most: equal or masked ones cost nothing
 * to send, but reading on for too long keeps the consumer waiting. */
#define ROWS_PER_INPUT 16

/* Bytes gathered at most, however large work_mem is: a twin cannot be cancelled
 * while its arguments are copied, and few servers take more at once. */
#define MOST_BYTES ((Size) 64 * 1024 * 1024)

/* Rows that a LIMIT above still asks for; -1 if that is not known */
static int64
rows_wanted(BatchState *state)
{
	ExprContext *econtext = state->css.ss.ps.ps_ExprContext;
	bool		isnull;
	int64		count;
	int64		offset = 0;

	if (state->limit_count == NULL)
		return -1;
	count = DatumGetInt64(ExecEvalExprSwitchContext(state->limit_count, econtext,
													&isnull));
	if (isnull || count < 0)
		return -1;
	if (state->limit_offset != NULL)
	{
		offset = DatumGetInt64(ExecEvalExprSwitchContext(state->limit_offset,
														 econtext, &isnull));
		if (isnull || offset < 0)
			offset = 0;
	}
	if (count > PG_INT64_MAX - offset)
		return -1;
	count += offset;
	return (uint64) count > state->returned ? count - (int64) state->returned : -1;
}

/* Evaluate prefilter, guards and arguments for the row in input_context */
static void
evaluate_inputs(BatchState *state, void *arg)
{
	ExprContext *econtext = state->input_context;
	bool	   *passes = arg;
	MemoryContext oldcontext =
		MemoryContextSwitchTo(econtext->ecxt_per_tuple_memory);

	*passes = ExecQual(state->prefilter, econtext);
	for (int i = 0; *passes && i < state->ncalls; i++)
	{
		CallState  *call = &state->calls[i];

		call->row_masked = false;
		if (call->guard != NULL)
		{
			bool		isnull;
			Datum		holds = ExecEvalExpr(call->guard, econtext, &isnull);

			call->row_masked = isnull || !DatumGetBool(holds);
			if (call->row_masked)
				continue;
		}
		for (int j = 0; j < call->nargs; j++)
		{
			Datum		value = ExecEvalExpr(call->args[j], econtext,
											 &call->row_nulls[j]);

			if (call->row_nulls[j])
			{
				call->row_values[j] = (Datum) 0;
				call->row_masked |= call->strict;
				continue;
			}
			/* the twin's array holds it whole; so count and compare it whole */
			if (call->argtypes[j].typlen == -1 && OidIsValid(call->twinid))
				value = PointerGetDatum(PG_DETOAST_DATUM_PACKED(value));
			call->row_values[j] = value;
		}
	}
	MemoryContextSwitchTo(oldcontext);
}

static void
grow_rows(BatchState *state)
{
	int			maxrows = Max(state->batch.maxrows * 2, BATCH_FIRST);
	MemoryContext context = state->css.ss.ps.state->es_query_cxt;
	bool		identities = state->css.ss.ss_currentRelation != NULL;

#define GROW(array, type) \
	((array) = (array) == NULL ? \
	 (type *) MemoryContextAllocHuge(context, sizeof(type) * maxrows) : \
	 (type *) repalloc_huge(array, sizeof(type) * maxrows))

	GROW(state->batch.tuples, MinimalTuple);
	if (identities)
		GROW(state->batch.tids, ItemPointerData);
	for (int i = 0; i < state->ncalls; i++)
		GROW(state->calls[i].inputs.row_inputs, int);
	state->batch.maxrows = maxrows;
}

/* A copy of the child's row with the columns that are needed above */
static MinimalTuple
copy_row(BatchState *state, TupleTableSlot *slot)
{
	MemoryContext oldcontext;
	MinimalTuple tuple;
	bool	   *isnull = state->row_slot->tts_isnull;

	if (state->keep_all)
	{
		oldcontext = MemoryContextSwitchTo(state->batch.context);
		tuple = ExecCopySlotMinimalTuple(slot);
		MemoryContextSwitchTo(oldcontext);
		return tuple;
	}

	/* row_slot is empty while rows are gathered: its arrays are free to use */
	slot_getallattrs(slot);
	for (int i = 0; i < state->nchild; i++)
		isnull[i] = slot->tts_isnull[i] || !state->kept[i];
	oldcontext = MemoryContextSwitchTo(state->batch.context);
	tuple = form_minimal_tuple(slot->tts_tupleDescriptor, slot->tts_values,
							   isnull);
	MemoryContextSwitchTo(oldcontext);
	return tuple;
}

/* The identity of the row that the scan below has just returned */
static void
copy_identity(BatchState *state)
{
	ScanState  *scan = (ScanState *) outerPlanState(state);
	ItemPointer tid = &state->batch.tids[state->batch.nrows];

	if (IsA(scan, IndexOnlyScanState))
		*tid = ((IndexOnlyScanState *) scan)->ioss_ScanDesc->xs_heaptid;
	else if (!TupIsNull(scan->ss_ScanTupleSlot))
		*tid = scan->ss_ScanTupleSlot->tts_tid;
	else
		ItemPointerSetInvalid(tid);
}

/* Note a row whose inputs have been evaluated */
static void
add_row(BatchState *state, TupleTableSlot *slot)
{
	MinimalTuple tuple;

	if (state->batch.nrows >= state->batch.maxrows)
		grow_rows(state);
	for (int i = 0; i < state->ncalls; i++)
	{
		CallState  *call = &state->calls[i];

		call->inputs.row_inputs[state->batch.nrows] =
			call->row_masked ? BATCH_NO_INPUT : batch_find_input(state, call);
	}
	tuple = copy_row(state, slot);
	state->batch.tuples[state->batch.nrows] = tuple;
	if (state->css.ss.ss_currentRelation != NULL)
		copy_identity(state);
	state->batch.bytes += tuple->t_len + BATCH_OVERHEAD_BYTES + sizeof(int) * state->ncalls;
	state->batch.nrows++;
}

/* Inputs of the call that has most of them */
static int
most_inputs(BatchState *state)
{
	int			most = 0;

	for (int i = 0; i < state->ncalls; i++)
		most = Max(most, state->calls[i].inputs.ninputs);
	return most;
}

/* How many inputs, and how many rows, the next batch should have */
static void
plan_batch(BatchState *state, int *target, int64 *max_rows)
{
	int64		wanted = rows_wanted(state);
	int			most = gather_rows;

	for (int i = 0; i < state->ncalls; i++)
	{
		if (state->calls[i].result.wide && state->calls[i].result_bytes == 0)
			most = Min(most, BATCH_FIRST_WIDE);
	}

	if (!state->speculative)
	{
		*target = most;
		*max_rows = (int64) most * ROWS_PER_INPUT;
		return;
	}
	if (wanted > 0)
	{
		*target = (int) Min(wanted, (int64) most);
		*max_rows = wanted;

		/* ours is a node type that ExecSetTupleBound() does not look behind */
		if ((state->layer.flags & BATCH_LIMIT_FINAL) && !state->bound_passed)
		{
			ExecSetTupleBound(wanted, outerPlanState(state));
			state->bound_passed = true;
		}
		return;
	}
	if (state->target == 0)
		state->target = BATCH_FIRST;
	else if (state->target < gather_rows)
		state->target *= BATCH_GROWTH;
	state->target = Min(state->target, gather_rows);
	*target = Min(state->target, most);
	*max_rows = (int64) *target * ROWS_PER_INPUT;
}

/* The child is at its end, or at an error that it holds for us */
static void
end_of_child(BatchState *state)
{
	state->child_done = true;
	state->batch.pending_error = state->error_from_below;
}

/*
 * A row of the child; NULL at its end.  What stands between us and a layer
 * that handed us its error takes that layer's end for a plain one, and may
 * return rows that come after it: of the next child of an Append, or padded with
 * NULLs by an outer join.  They are not wanted.
 */
static TupleTableSlot *
read_child(BatchState *state)
{
	TupleTableSlot *slot = ExecProcNode(outerPlanState(state));

	return state->error_from_below == NULL ? slot : NULL;
}

/*
 * Has the child any row at all?  Its first one is kept for the first batch.
 * Stacked layers ask the lowest, since all of them return a row for a row.
 */
bool
batch_peek(BatchState *state)
{
	TupleTableSlot *slot;

	if (state->peek_slot == NULL)
		return batch_peek((BatchState *) outerPlanState(state));

	slot = read_child(state);
	if (TupIsNull(slot))
	{
		end_of_child(state);
		return false;
	}
	ExecCopySlot(state->peek_slot, slot);
	return true;
}

/* The child's next row: the one that was peeked at, or a new one */
static TupleTableSlot *
next_child_row(BatchState *state)
{
	if (state->peek_slot != NULL && !TupIsNull(state->peek_slot))
	{
		if (!state->peek_taken)
		{
			state->peek_taken = true;
			return state->peek_slot;
		}
		ExecClearTuple(state->peek_slot);
	}
	if (state->child_done)
		return NULL;
	return read_child(state);
}

/*
 * Gather the next batch.  Afterwards there are rows to return, or an error is
 * pending, or the child is done; the last two may come with rows, too.  Raises
 * the errors of the child, and those that cannot wait for their row.
 */
void
batch_gather(BatchState *state)
{
	ExprContext *econtext = state->input_context;
	Size		max_bytes = Min((Size) work_mem * 1024, MOST_BYTES) /
		(state->overlaps ? 2 : 1);
	int			target;
	int64		max_rows;

	plan_batch(state, &target, &max_rows);
	state->batch.number = ++state->last_batch;

	while (state->batch.nrows < max_rows && most_inputs(state) < target &&
		   state->batch.bytes < max_bytes)
	{
		TupleTableSlot *slot = next_child_row(state);
		ErrorData  *error = NULL;
		bool		passes = false;

		CHECK_FOR_INTERRUPTS();

		if (TupIsNull(slot))
		{
			end_of_child(state);
			break;
		}

		ResetExprContext(econtext);
		econtext->ecxt_outertuple = slot;
		if (batch_can_hold_error(state, BATCH_INPUT_FALLIBLE))
			error = batch_try(state, evaluate_inputs, &passes);
		else
			evaluate_inputs(state, &passes);

		if (error != NULL)
		{
			state->batch.pending_error = error;
			break;
		}
		if (passes)
			add_row(state, slot);
		else
			InstrCountFiltered1(&state->css, 1);
	}

	batch_count_rows(state, state->batch.nrows);
}
