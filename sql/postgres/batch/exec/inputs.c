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
item_equals_row(CallState *call, int item)
{
	Datum	   *values = &call->items.values[item * call->nargs];
	bool	   *nulls = &call->items.nulls[item * call->nargs];

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

/* Make room for more items; everything lives as long as the node */
static void
grow_items(BatchState *state, CallState *call)
{
	MemoryContext oldcontext =
		MemoryContextSwitchTo(state->css.ss.ps.state->es_query_cxt);
	int			maxitems = Max(call->items.maxitems * 2, BATCH_FIRST);
	ItemSlot   *old = call->items.slots;
	uint32		nold = call->items.nslots;

	if (call->items.maxitems == 0)
	{
		call->items.values = palloc(sizeof(Datum) * maxitems * call->nargs);
		call->items.nulls = palloc(sizeof(bool) * maxitems * call->nargs);
		call->items.results = palloc(sizeof(Datum) * maxitems);
		call->items.result_nulls = palloc(sizeof(bool) * maxitems);
	}
	else
	{
		call->items.values = repalloc_huge(call->items.values,
									 sizeof(Datum) * maxitems * call->nargs);
		call->items.nulls = repalloc_huge(call->items.nulls,
									sizeof(bool) * maxitems * call->nargs);
		call->items.results = repalloc_huge(call->items.results, sizeof(Datum) * maxitems);
		call->items.result_nulls = repalloc_huge(call->items.result_nulls,
										   sizeof(bool) * maxitems);
	}
	call->items.maxitems = maxitems;

	/* at most half full */
	call->items.nslots = maxitems * 2;
	call->items.slots = MemoryContextAllocExtended(CurrentMemoryContext,
											 sizeof(ItemSlot) * call->items.nslots,
											 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (uint32 i = 0; i < nold; i++)
	{
		uint32		slot;

		if (old[i].batch != state->batch.number)
			continue;
		slot = old[i].hash & (call->items.nslots - 1);
		while (call->items.slots[slot].batch == state->batch.number)
			slot = (slot + 1) & (call->items.nslots - 1);
		call->items.slots[slot] = old[i];
	}
	if (old != NULL)
		pfree(old);
	MemoryContextSwitchTo(oldcontext);
}

/* The item of the row's inputs, a new one if no row before had the same */
int
batch_find_item(BatchState *state, CallState *call)
{
	uint32		hash = hash_row(call);
	uint32		slot;
	int			item;
	MemoryContext oldcontext;

	if (call->items.nitems >= call->items.maxitems)
		grow_items(state, call);

	slot = hash & (call->items.nslots - 1);
	while (call->items.slots[slot].batch == state->batch.number)
	{
		if (call->items.slots[slot].hash == hash &&
			item_equals_row(call, call->items.slots[slot].item))
			return call->items.slots[slot].item;
		slot = (slot + 1) & (call->items.nslots - 1);
	}

	item = call->items.nitems;
	oldcontext = MemoryContextSwitchTo(state->batch.context);
	for (int j = 0; j < call->nargs; j++)
	{
		BatchType  *type = &call->argtypes[j];
		Datum		value = call->row_values[j];
		bool		isnull = call->row_nulls[j];

		call->items.nulls[item * call->nargs + j] = isnull;
		call->items.values[item * call->nargs + j] =
			isnull ? (Datum) 0 : datumCopy(value, type->typbyval, type->typlen);
		if (!isnull && !type->typbyval)
			state->batch.bytes += datumGetSize(value, false, type->typlen) +
				BATCH_OVERHEAD_BYTES;
	}
	MemoryContextSwitchTo(oldcontext);
	state->batch.bytes += sizeof(ItemSlot) * 2 + sizeof(Datum) * (call->nargs + 1) +
		(Size) call->result_bytes;

	call->items.slots[slot].batch = state->batch.number;
	call->items.slots[slot].hash = hash;
	call->items.slots[slot].item = item;
	call->items.nitems++;
	return item;
}
