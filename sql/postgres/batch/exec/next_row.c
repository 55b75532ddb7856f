/*-------------------------------------------------------------------------
 *
 * next_row.c
 *	  The next row of a layer: from the batch, or from the next one.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"

/*
 * The row that failed is asked for now.  Raise its error, or hand it to a
 * layer above that reads ahead itself.
 */
static void
raise_pending_error(BatchState *state)
{
	ErrorData  *error = state->batch.pending_error;

	state->batch.pending_error = NULL;
	state->child_done = true;
	if (state->error_owner == NULL)
		ReThrowError(error);
	batch_drop_next(state);
	state->error_handed_up = true;
	state->error_owner->error_from_below = error;
}

/* The error of a row that was gathered already: it ends the batch there */
static void
end_batch_at(BatchState *state, int row, ErrorData *error)
{
	state->batch.nrows = row;
	state->batch.pending_error = error;
}

/* Put a gathered row and its results into the scan tuple */
static void
load_row(BatchState *state, int row)
{
	TupleTableSlot *slot = state->css.ss.ss_ScanTupleSlot;
	TupleTableSlot *source = state->row_slot;
	int			column = state->nchild;

	ExecClearTuple(slot);
	ExecStoreMinimalTuple(state->batch.tuples[row], source, false);
	slot_getallattrs(source);
	memcpy(slot->tts_values, source->tts_values, sizeof(Datum) * column);
	memcpy(slot->tts_isnull, source->tts_isnull, sizeof(bool) * column);
	for (int i = 0; i < state->ncalls; i++, column++)
	{
		CallState  *call = &state->calls[i];
		int			input = call->inputs.row_inputs[row];

		slot->tts_isnull[column] =
			(input == BATCH_NO_INPUT || call->inputs.result_nulls[input]);
		slot->tts_values[column] =
			slot->tts_isnull[column] ? (Datum) 0 : call->inputs.results[input];
	}
	ExecStoreVirtualTuple(slot);

	if (state->css.ss.ss_currentRelation != NULL)
	{
		slot->tts_tid = state->batch.tids[row];
		slot->tts_tableOid = RelationGetRelid(state->css.ss.ss_currentRelation);
	}
}

static void
test_qual(BatchState *state, void *arg)
{
	PlanState  *ps = &state->css.ss.ps;

	*(bool *) arg = ExecQual(ps->qual, ps->ps_ExprContext);
}

/* Does the loaded row pass our filter?  May end the batch with an error. */
static bool
row_passes(BatchState *state, int row)
{
	PlanState  *ps = &state->css.ss.ps;
	bool		passes = false;
	ErrorData  *error = NULL;

	if (ps->qual == NULL)
		return true;
	if (state->error_owner != NULL && batch_can_hold_error(state, BATCH_QUAL_FALLIBLE))
		error = batch_try(state, test_qual, &passes);
	else
		test_qual(state, &passes);

	if (error != NULL)
		end_batch_at(state, row, error);
	else if (!passes)
		InstrCountFiltered1(&state->css, 1);
	return passes;
}

/* Have all calls of a row been answered, or can they be now? */
static bool
row_answered(BatchState *state, int row)
{
	for (int i = 0; i < state->ncalls; i++)
	{
		CallState  *call = &state->calls[i];
		int			input = call->inputs.row_inputs[row];

		if (input >= call->inputs.answered && !batch_answer(state, call, input))
		{
			end_batch_at(state, row, state->batch.pending_error);
			return false;
		}
	}
	return true;
}

/* A row of NULLs, as our result */
static TupleTableSlot *
dummy_row(BatchState *state)
{
	PlanState  *ps = &state->css.ss.ps;
	TupleTableSlot *slot = ps->ps_ProjInfo != NULL ? ps->ps_ResultTupleSlot :
		state->css.ss.ss_ScanTupleSlot;

	state->dummy_counted = (ps->instrument != NULL);
	return ExecStoreAllNullTuple(slot);
}

/*
 * ExecCustomScan: the next row, in a slot of the node's; NULL at the end.
 * Raises the error of the row that is asked for, errors of the child, and those
 * of the twin that are not about a row.
 */
TupleTableSlot *
batch_next_row(CustomScanState *node)
{
	BatchState *state = (BatchState *) node;
	PlanState  *ps = &node->ss.ps;
	ExprContext *econtext = ps->ps_ExprContext;

	/* cursors that could turn around were left without layers */
	if (!ScanDirectionIsForward(ps->state->es_direction))
		elog(ERROR, "ml_udf: a batch cannot be read backwards");

	if (state->layer.flags & BATCH_DUMMY_ROW)
	{
		if (!state->dummy_returned)
		{
			state->dummy_returned = true;
			if (batch_peek(state))
				return dummy_row(state);
		}
		else if (state->dummy_counted)
		{
			/* EXPLAIN ANALYZE should not show it */
			ps->instrument->tuplecount -= 1;
			state->dummy_counted = false;
		}
	}

	for (;;)
	{
		int			row;

		CHECK_FOR_INTERRUPTS();

		/* our reader has its last row: another layer below it has failed */
		if (state->error_owner != NULL && state->error_owner->error_from_below != NULL)
			return NULL;

		if (state->batch.next_row >= state->batch.nrows)
		{
			if (state->batch.pending_error != NULL)
				raise_pending_error(state);
			if (state->next_filled)
				batch_take_next(state);
			else if (state->child_done)
			{
				batch_reset(state);
				return NULL;
			}
			else
			{
				batch_reset(state);
				batch_gather(state);
			}
			batch_begin_next(state);
			continue;
		}

		row = state->batch.next_row;
		if (!row_answered(state, row))
			continue;
		state->batch.next_row++;

		ResetExprContext(econtext);
		load_row(state, row);
		econtext->ecxt_scantuple = node->ss.ss_ScanTupleSlot;
		if (!row_passes(state, row))
			continue;

		state->returned++;
		return ps->ps_ProjInfo != NULL ? ExecProject(ps->ps_ProjInfo) :
			node->ss.ss_ScanTupleSlot;
	}
}
