/*-------------------------------------------------------------------------
 *
 * call.c
 *	  Calling the twin for a slice of a batch's inputs.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"
#include "compat.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "pgstat.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"

/* How slices grow while the row at fault is searched */
#define SLICE_GROWTH 4

/* Look up the function to call; also after an error, to forget its state */
void
batch_call_reset(BatchState *state, CallState *call)
{
	fmgr_info_cxt(OidIsValid(call->twinid) ? call->twinid : call->funcid,
				  &call->flinfo, state->css.ss.ps.state->es_query_cxt);
	batch_type_reset(&call->result, state->css.ss.ps.state->es_query_cxt);
	/* a function called in its own name may look at the expression */
	if (!OidIsValid(call->twinid))
		fmgr_info_set_expr(call->expr, &call->flinfo);
}

/*
 * Prepare a call whose expr, funcid and twinid are set; it lives as long as the
 * node.  Raises an error if the types no longer fit the twin's.
 */
void
batch_call_begin(BatchState *state, CallState *call)
{
	List	   *args = batch_call_args(call->expr);
	Oid			twin_result = InvalidOid;
	Oid		   *twin_args = NULL;
	int			twin_nargs = 0;
	ListCell   *lc;

	call->nargs = list_length(args);
	call->collation = batch_call_collation(call->expr);
	call->strict = func_strict(call->funcid);

	if (OidIsValid(call->twinid))
	{
		call->answers_later = state->overlaps && batch_answers_later(call->twinid);
		call->settings = batch_own_settings(call->funcid, call->twinid);
		twin_result = get_func_signature(call->twinid, &twin_args, &twin_nargs);
		if (twin_nargs != call->nargs)
			elog(ERROR, "ml_udf: twin %u has %d arguments instead of %d",
				 call->twinid, twin_nargs, call->nargs);
	}

	call->args = palloc0(sizeof(ExprState *) * call->nargs);
	call->argtypes = palloc0(sizeof(BatchType) * call->nargs);
	call->row_values = palloc0(sizeof(Datum) * call->nargs);
	call->row_nulls = palloc0(sizeof(bool) * call->nargs);
	foreach(lc, args)
	{
		int			j = foreach_current_index(lc);
		Oid			type = exprType(lfirst(lc));

		/* the function's own type, of which the expression's may be a domain */
		if (OidIsValid(call->twinid))
		{
			Oid		   *argtypes;
			int			nargs;

			(void) get_func_signature(call->funcid, &argtypes, &nargs);
			type = argtypes[j];
		}
		batch_type_init(&call->argtypes[j], type,
				  OidIsValid(call->twinid) ? twin_args[j] : InvalidOid);
	}
	batch_type_init(&call->result, exprType(call->expr), twin_result);
	batch_call_reset(state, call);
}

/*
 * Call the twin once for n inputs from first on.  Its results are copied into
 * the batch; what else it makes stays in CurrentMemoryContext.  Returns false if
 * it has begun to compute them, which it may only where it is asked to.  Raises
 * what the twin does, and an error of class 39 if it returns no such array.
 */
bool
batch_call_twin(BatchState *state, CallState *call, int first, int n, int asked)
{
	FunctionCallInfo fcinfo = palloc0(SizeForFunctionCallInfo(call->nargs));
	PgStat_FunctionCallUsage usage;
	Datum		result;
	int			nestlevel;

	InitFunctionCallInfoData(*fcinfo, &call->flinfo, call->nargs,
							 call->collation, NULL, NULL);
	for (int j = 0; j < call->nargs; j++)
	{
		fcinfo->args[j].value = batch_make_argument(call, j, first, n);
		fcinfo->args[j].isnull = false;
	}
	pgstat_init_function_usage(fcinfo, &usage);
	nestlevel = batch_apply_settings(call->settings);
	/* a twin that was never begun with must not find what another was asked */
	PG_TRY();
	{
		ml_udf_batch_asked = asked;
		ml_udf_batch_cached = 0;
		result = FunctionCallInvoke(fcinfo);
	}
	PG_FINALLY();
	{
		ml_udf_batch_asked = BATCH_ASK_NOW;
	}
	PG_END_TRY();
	batch_restore_settings(nestlevel);
	pgstat_end_function_usage(&usage, true);
	batch_count_cached(state, call);

	if (asked != BATCH_ASK_NOW && fcinfo->isnull)
		return false;
	if (fcinfo->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_NULL_VALUE_NOT_ALLOWED),
				 errmsg("function %s returned NULL instead of an array of %d results",
						format_procedure(call->twinid), n)));
	batch_take_results(state, call, result, first, n);
	return true;
}

/* Call the function itself for each of n inputs */
static void
call_function(BatchState *state, CallState *call, int first, int n)
{
	FunctionCallInfo fcinfo = palloc0(SizeForFunctionCallInfo(call->nargs));

	for (int i = first; i < first + n; i++)
	{
		PgStat_FunctionCallUsage usage;
		MemoryContext oldcontext;
		Datum		result;

		CHECK_FOR_INTERRUPTS();

		InitFunctionCallInfoData(*fcinfo, &call->flinfo, call->nargs,
								 call->collation, NULL, NULL);
		for (int j = 0; j < call->nargs; j++)
		{
			fcinfo->args[j].value = call->inputs.values[i * call->nargs + j];
			fcinfo->args[j].isnull = call->inputs.nulls[i * call->nargs + j];
		}
		pgstat_init_function_usage(fcinfo, &usage);
		result = FunctionCallInvoke(fcinfo);
		pgstat_end_function_usage(&usage, true);

		oldcontext = MemoryContextSwitchTo(state->batch.context);
		call->inputs.result_nulls[i] = fcinfo->isnull;
		call->inputs.results[i] = fcinfo->isnull ? (Datum) 0 :
			datumCopy(result, call->result.typbyval, call->result.typlen);
		MemoryContextSwitchTo(oldcontext);
	}
}

typedef struct Slice
{
	CallState  *call;
	int			n;
} Slice;

static void
slice_context(void *arg)
{
	Slice	   *slice = arg;

	errcontext("batch of %d for function %s", slice->n,
			   format_procedure(slice->call->funcid));
}

/* Answer the next n inputs; a BatchBlock */
static void
answer_slice(BatchState *state, void *arg)
{
	Slice	   *slice = arg;
	CallState  *call = slice->call;
	MemoryContext oldcontext = MemoryContextSwitchTo(state->call_context);
	ErrorContextCallback callback;

	if (OidIsValid(call->twinid))
	{
		callback.callback = slice_context;
		callback.arg = slice;
		callback.previous = error_context_stack;
		error_context_stack = &callback;
		(void) batch_call_twin(state, call, call->inputs.answered, slice->n,
							   BATCH_ASK_NOW);
		error_context_stack = callback.previous;
	}
	else
		call_function(state, call, call->inputs.answered, slice->n);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Make sure that an input has its result.  It is the first that has none, since
 * inputs are numbered in the order of their rows and rows are returned in order.
 *
 * Returns false if the input's error is to be held: it is in state->batch.pending.
 */
bool
batch_answer(BatchState *state, CallState *call, int input)
{
	while (call->inputs.answered <= input)
	{
		Slice		slice = {call, call->inputs.ninputs - call->inputs.answered};
		ErrorData  *error = NULL;
		instr_time	start;
		instr_time	duration;

		Assert(input == call->inputs.answered || call->inputs.slice == 0);
		if (call->inputs.slice > 0)
			slice.n = Min(slice.n, call->inputs.slice);

		MemoryContextReset(state->call_context);
		INSTR_TIME_SET_CURRENT(start);

		/* the error of one input that is asked for needs no care */
		if (!state->speculative || (slice.n == 1 && state->error_owner == NULL))
			answer_slice(state, &slice);
		else
			error = batch_try(state, answer_slice, &slice);

		INSTR_TIME_SET_CURRENT(duration);
		INSTR_TIME_SUBTRACT(duration, start);
		batch_count_call(state, call, slice.n, call->inputs.begun_ms +
						 INSTR_TIME_GET_MILLISEC(duration));
		call->inputs.begun = false;
		call->inputs.begun_ms = 0;

		if (error != NULL)
		{
			batch_call_reset(state, call);
			if (slice.n == 1)
			{
				state->batch.pending_error = error;
				return false;
			}
			FreeErrorData(error);
			call->inputs.slice = 1;
			continue;
		}
		/* the results are copied: what the twin made of them can go */
		MemoryContextReset(state->call_context);
		call->inputs.answered += slice.n;
		if (call->inputs.slice > 0)
			call->inputs.slice *= SLICE_GROWTH;
	}
	return true;
}
