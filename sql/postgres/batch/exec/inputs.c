/*-------------------------------------------------------------------------
 *
 * inputs.c
 *	  The distinct inputs of a batch.
 *
 * Inputs are equal if their images are: 1.0 and 1.00 are equal numerics and
 * yet two inputs, as a function may tell them apart.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"

#include "common/hashfn.h"
#include "utils/datum.h"
#include "utils/memutils.h"

static uint32
hash_row(CallState *call)
{
	uint32		hash = 0;

	for (int j = 0; j < call->nargs; j++)
	{
		hash = pg_rotate_left32(hash, 1);
		if (!call->row_nulls[j])
			hash ^= datum_image_hash(call->row_values[j],
									 call->argtypes[j].typbyval,
									 call->argtypes[j].typlen);
	}
	return murmurhash32(hash);
}

static bool
input_equals_row(CallState *call, int input)
{
	Datum	   *values = &call->inputs.values[input * call->nargs];
	bool	   *nulls = &call->inputs.nulls[input * call->nargs];

	for (int j = 0; j < call->nargs; j++)
	{
		if (nulls[j] != call->row_nulls[j])
			return false;
		if (!nulls[j] && !datum_image_eq(values[j], call->row_values[j],
										 call->argtypes[j].typbyval,
										 call->argtypes[j].typlen))
			return false;
	}
	return true;
}

/* Make room for more inputs; everything lives as long as the node */
static void
grow_inputs(BatchState *state, CallState *call)
{
	MemoryContext oldcontext =
		MemoryContextSwitchTo(state->css.ss.ps.state->es_query_cxt);
	int			maxinputs = Max(call->inputs.maxinputs * 2, BATCH_FIRST);
	InputSlot   *old = call->inputs.slots;
	uint32		nold = call->inputs.nslots;

	if (call->inputs.maxinputs == 0)
	{
		call->inputs.values = palloc(sizeof(Datum) * maxinputs * call->nargs);
		call->inputs.nulls = palloc(sizeof(bool) * maxinputs * call->nargs);
		call->inputs.results = palloc(sizeof(Datum) * maxinputs);
		call->inputs.result_nulls = palloc(sizeof(bool) * maxinputs);
	}
	else
	{
		call->inputs.values = repalloc_huge(call->inputs.values,
									 sizeof(Datum) * maxinputs * call->nargs);
		call->inputs.nulls = repalloc_huge(call->inputs.nulls,
									sizeof(bool) * maxinputs * call->nargs);
		call->inputs.results = repalloc_huge(call->inputs.results, sizeof(Datum) * maxinputs);
		call->inputs.result_nulls = repalloc_huge(call->inputs.result_nulls,
										   sizeof(bool) * maxinputs);
	}
	call->inputs.maxinputs = maxinputs;

	/* at most half full */
	call->inputs.nslots = maxinputs * 2;
	call->inputs.slots = MemoryContextAllocExtended(CurrentMemoryContext,
											 sizeof(InputSlot) * call->inputs.nslots,
											 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (uint32 i = 0; i < nold; i++)
	{
		uint32		slot;

		if (old[i].batch != state->batch.number)
			continue;
		slot = old[i].hash & (call->inputs.nslots - 1);
		while (call->inputs.slots[slot].batch == state->batch.number)
			slot = (slot + 1) & (call->inputs.nslots - 1);
		call->inputs.slots[slot] = old[i];
	}
	if (old != NULL)
		pfree(old);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * The number of the row's input, which is in call->row_values; a new one,
 * copied into the batch's context, if no row before had the same.
 */
int
batch_find_input(BatchState *state, CallState *call)
{
	uint32		hash = hash_row(call);
	uint32		slot;
	int			input;
	MemoryContext oldcontext;

	if (call->inputs.ninputs >= call->inputs.maxinputs)
		grow_inputs(state, call);

	slot = hash & (call->inputs.nslots - 1);
	while (call->inputs.slots[slot].batch == state->batch.number)
	{
		if (call->inputs.slots[slot].hash == hash &&
			input_equals_row(call, call->inputs.slots[slot].input))
			return call->inputs.slots[slot].input;
		slot = (slot + 1) & (call->inputs.nslots - 1);
	}

	input = call->inputs.ninputs;
	oldcontext = MemoryContextSwitchTo(state->batch.context);
	for (int j = 0; j < call->nargs; j++)
	{
		BatchType  *type = &call->argtypes[j];
		Datum		value = call->row_values[j];
		bool		isnull = call->row_nulls[j];

		call->inputs.nulls[input * call->nargs + j] = isnull;
		call->inputs.values[input * call->nargs + j] =
			isnull ? (Datum) 0 : datumCopy(value, type->typbyval, type->typlen);
		if (!isnull && !type->typbyval)
			state->batch.bytes += datumGetSize(value, false, type->typlen) +
				BATCH_OVERHEAD_BYTES;
	}
	MemoryContextSwitchTo(oldcontext);
	state->batch.bytes += sizeof(InputSlot) * 2 + sizeof(Datum) * (call->nargs + 1) +
		(Size) call->result_bytes;

	call->inputs.slots[slot].batch = state->batch.number;
	call->inputs.slots[slot].hash = hash;
	call->inputs.slots[slot].input = input;
	call->inputs.ninputs++;
	return input;
}
