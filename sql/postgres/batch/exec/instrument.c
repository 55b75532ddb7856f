/*-------------------------------------------------------------------------
 *
 * instrument.c
 *	  Counting batches, in parallel workers too.
 *
 * Under a Gather every process counts in its own place of an array in shared
 * memory, after each batch; there is no callback at a worker's end.  The
 * leader adds the places up before the memory goes.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"

#include "access/parallel.h"

/*
 * A twin adds to it the inputs that it need not compute, for instance since its
 * server has kept their answers.
 */
uint64		ml_udf_batch_cached = 0;

/* Our own place */
static BatchCounts *
own_counts(BatchState *state, CallState *call)
{
	int			process = IsParallelWorker() ? ParallelWorkerNumber + 1 : 0;

	if (state->shared == NULL || process >= state->nshared)
		return &call->counts;
	return &state->shared[process * state->ncalls + (call - state->calls)];
}

/* So many rows were gathered for every call */
void
batch_count_rows(BatchState *state, int rows)
{
	for (int i = 0; i < state->ncalls; i++)
		own_counts(state, &state->calls[i])->rows += rows;
}

/* A twin was sent so many inputs, and took ms milliseconds */
void
batch_count_call(BatchState *state, CallState *call, int sent, double ms)
{
	BatchCounts *counts = own_counts(state, call);
	bool		first = (counts->batches == 0);

	counts->batches++;
	counts->sent += sent;
	counts->min_sent = first ? sent : Min(counts->min_sent, sent);
	counts->max_sent = Max(counts->max_sent, sent);
	counts->total_ms += ms;
	counts->min_ms = first ? ms : Min(counts->min_ms, ms);
	counts->max_ms = Max(counts->max_ms, ms);
}

/* What the twin has said of the inputs that it was given just now */
void
batch_count_cached(BatchState *state, CallState *call)
{
	own_counts(state, call)->cached += ml_udf_batch_cached;
	ml_udf_batch_cached = 0;
}

static void
add_counts(BatchCounts *total, const BatchCounts *more)
{
	total->rows += more->rows;
	total->cached += more->cached;
	if (more->batches == 0)
		return;
	total->min_sent = total->batches == 0 ? more->min_sent :
		Min(total->min_sent, more->min_sent);
	total->min_ms = total->batches == 0 ? more->min_ms :
		Min(total->min_ms, more->min_ms);
	total->max_sent = Max(total->max_sent, more->max_sent);
	total->max_ms = Max(total->max_ms, more->max_ms);
	total->batches += more->batches;
	total->sent += more->sent;
	total->total_ms += more->total_ms;
}

/* The counts of one call in all processes */
BatchCounts
batch_total(BatchState *state, int call)
{
	BatchCounts total = state->calls[call].counts;

	for (int i = 0; state->shared != NULL && i < state->nshared; i++)
		add_counts(&total, &state->shared[i * state->ncalls + call]);
	return total;
}

/* EstimateDSMCustomScan: bytes for all processes' counts */
Size
batch_estimate_dsm(CustomScanState *node, ParallelContext *pcxt)
{
	BatchState *state = (BatchState *) node;

	return mul_size(sizeof(BatchCounts),
					mul_size(state->ncalls, pcxt->nworkers + 1)) +
		MAXALIGN(sizeof(int));
}

/* InitializeDSMCustomScan, in the leader */
void
batch_init_dsm(CustomScanState *node, ParallelContext *pcxt, void *coordinate)
{
	BatchState *state = (BatchState *) node;

	state->nshared = pcxt->nworkers + 1;
	*(int *) coordinate = state->nshared;
	state->shared = (BatchCounts *) ((char *) coordinate + MAXALIGN(sizeof(int)));
	memset(state->shared, 0,
		   sizeof(BatchCounts) * state->nshared * state->ncalls);
}

/*
 * ReInitializeDSMCustomScan: the workers of a rescan go on counting where the
 * last ones stopped.
 */
void
batch_reinit_dsm(CustomScanState *node, ParallelContext *pcxt, void *coordinate)
{
}

/* InitializeWorkerCustomScan */
void
batch_init_worker(CustomScanState *node, shm_toc *toc, void *coordinate)
{
	BatchState *state = (BatchState *) node;

	state->nshared = *(int *) coordinate;
	state->shared = (BatchCounts *) ((char *) coordinate + MAXALIGN(sizeof(int)));
}

/* ShutdownCustomScan: the shared memory is about to go */
void
batch_shutdown(CustomScanState *node)
{
	BatchState *state = (BatchState *) node;

	if (state->shared == NULL)
		return;
	if (!IsParallelWorker())
	{
		for (int i = 0; i < state->ncalls; i++)
			state->calls[i].counts = batch_total(state, i);
	}
	state->shared = NULL;
}
