/*-------------------------------------------------------------------------
 *
 * overlap.c
 *	  The next batch: gathered, and begun, while the current one is computed
 *	  and its rows are returned.
 *
 * A twin that asks a server over the network has nothing to do while the
 * server computes, and the server has nothing to do while rows are gathered.
 * A twin that is declared with SET ml_udf.answers_later = on can be asked to
 * begin with a batch: it sends the inputs and returns NULL.  Called later with
 * the same inputs, in the usual way, it waits for the results.  So while one
 * batch is computed the next is gathered and begun, and while that one is
 * computed the first is returned:
 *
 *		gather 1, begin 1, gather 2, begin 2, answer 1, return 1,
 *		gather 3, begin 3, answer 2, return 2, ...
 *
 * What was begun has no effect on what the rows are or which errors they
 * raise: a twin reports the errors of rows when it is asked for the answers.
 * A begun batch that nobody asks for is dropped by the twin, at the latest
 * when the statement ends or its transaction is aborted.
 *
 * It costs the second batch (each gets half of work_mem) and rows that may be
 * computed for nothing.  So it is done only for a reader who reads everything,
 * or has read so much that batches have their full size; not for a LIMIT whose
 * rows are known, and not for a cursor, whose reader may pause for an hour.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"

#include "utils/memutils.h"

/*
 * What the twin that is being called is asked to do.  A twin that can answer
 * later reads it at its beginning and sets it back, so that a function that
 * it calls in turn is not meant.
 */
int			ml_udf_batch_asked = BATCH_ASK_NOW;

/* Ask a twin to begin with all inputs of the batch; a BatchBlock */
static void
begin_call(BatchState *state, void *arg)
{
	CallState  *call = arg;
	MemoryContext oldcontext = MemoryContextSwitchTo(state->call_context);

	call->inputs.begun = !batch_call_twin(state, call, 0, call->inputs.ninputs,
										 BATCH_ASK_BEGIN);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Begin to answer the batch.  Returns false if no twin did.  One that raises an
 * error here raises it again when it is asked for the answers, if it ever is.
 */
static bool
begin_batch(BatchState *state)
{
	bool		begun = false;

	for (int i = 0; i < state->ncalls; i++)
	{
		CallState  *call = &state->calls[i];
		ErrorData  *error = NULL;
		instr_time	start;
		instr_time	duration;

		if (call->answers_later && !call->inputs.begun &&
			call->inputs.answered < call->inputs.ninputs)
		{
			MemoryContextReset(state->call_context);
			INSTR_TIME_SET_CURRENT(start);
			if (state->speculative)
				error = batch_try(state, begin_call, call);
			else
				begin_call(state, call);
			INSTR_TIME_SET_CURRENT(duration);
			INSTR_TIME_SUBTRACT(duration, start);
			call->inputs.begun_ms = INSTR_TIME_GET_MILLISEC(duration);

			if (error != NULL)
			{
				FreeErrorData(error);
				batch_call_reset(state, call);
			}
			else if (!call->inputs.begun)
			{
				/* it answered: it cannot do otherwise here */
				batch_count_call(state, call, call->inputs.ninputs,
								 call->inputs.begun_ms);
				call->inputs.answered = call->inputs.ninputs;
				call->answers_later = false;
			}
		}
		begun |= call->inputs.begun;
	}
	return begun;
}

static void
swap_batches(BatchState *state)
{
	Batch		batch = state->batch;

	state->batch = state->next_batch;
	state->next_batch = batch;
	for (int i = 0; i < state->ncalls; i++)
	{
		CallInputs	inputs = state->calls[i].inputs;

		state->calls[i].inputs = state->calls[i].next_inputs;
		state->calls[i].next_inputs = inputs;
	}
}

/*
 * The current batch has just been gathered, or was the next one until now: let
 * it be computed while the one after it is gathered, and that one while the rows
 * of this one are returned.
 * Does nothing where no twin can, or the reader may stop.  Raises what gathering
 * does.
 */
void
batch_begin_next(BatchState *state)
{
	if (!state->overlaps || state->child_done || state->batch.pending_error != NULL)
		return;
	if (state->speculative &&
		(state->layer.limit_count != NULL || state->target < gather_rows))
		return;
	if (!begin_batch(state))
		return;

	swap_batches(state);
	batch_gather(state);
	(void) begin_batch(state);
	swap_batches(state);
	state->next_filled = true;
}

/* All rows of the batch are returned; it is the next one's turn */
void
batch_take_next(BatchState *state)
{
	batch_reset(state);
	swap_batches(state);
	state->next_filled = false;
}

/* Nobody asks for the next batch: drop it, at the server too */
void
batch_drop_next(BatchState *state)
{
	for (int i = 0; i < state->ncalls; i++)
	{
		CallState  *call = &state->calls[i];

		if (call->inputs.begun || call->next_inputs.begun)
		{
			MemoryContext oldcontext;

			MemoryContextReset(state->call_context);
			oldcontext = MemoryContextSwitchTo(state->call_context);
			(void) batch_call_twin(state, call, 0, 0, BATCH_ASK_FORGET);
			MemoryContextSwitchTo(oldcontext);
			call->inputs.begun = false;
		}
	}
	if (state->next_filled)
	{
		swap_batches(state);
		batch_reset(state);
		state->batch.pending_error = NULL;
		swap_batches(state);
		state->next_filled = false;
	}
}
