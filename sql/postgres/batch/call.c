/*-------------------------------------------------------------------------
 *
 * call.c
 *	  Calling the twin for a slice of a batch's items.
 *
 *-------------------------------------------------------------------------
 */
#include "execute.h"
#include "compat.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "pgstat.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/typcache.h"

/* How slices grow while the row at fault is searched */
#define SLICE_GROWTH 4

/*
 * Errors that say something about the system, not about a row.  Trying again
 * would only repeat them, at best; a cancel must not be tried away.
 */
bool
batch_error_is_rows(ErrorData *error)
{
	switch (ERRCODE_TO_CATEGORY(error->sqlerrcode))
	{
		case ERRCODE_CONNECTION_EXCEPTION:
		case ERRCODE_INVALID_TRANSACTION_STATE:
		case ERRCODE_EXTERNAL_ROUTINE_INVOCATION_EXCEPTION:
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case MAKE_SQLSTATE('5', '5', '0', '0', '0'):	/* object state, locks */
		case MAKE_SQLSTATE('5', '7', '0', '0', '0'):	/* cancel, shutdown */
		case ERRCODE_SYSTEM_ERROR:
		case ERRCODE_CONFIG_FILE_ERROR:
		case ERRCODE_INTERNAL_ERROR:
			return false;
		default:
			return true;
	}
}

static void
init_type(BatchType *type, Oid valuetype, Oid arraytype)
{
	Oid			wrapper;

	type->type = valuetype;
	get_typlenbyval(valuetype, &type->typlen, &type->typbyval);
	if (!OidIsValid(arraytype))
		return;

	if (!batch_array_form(arraytype, valuetype, &wrapper))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("type %s cannot carry values of type %s for a batch",
						format_type_be(arraytype), format_type_be(valuetype)),
				 errhint("The type was changed after the query was planned; run it again.")));
	type->elemtype = get_element_type(arraytype);
	get_typlenbyvalalign(type->elemtype, &type->elemlen, &type->elembyval,
						 &type->elemalign);
	if (OidIsValid(wrapper))
	{
		type->wrapper = lookup_rowtype_tupdesc_copy(wrapper, -1);
		for (int i = 0; i < type->wrapper->natts; i++)
		{
			if (!TupleDescAttr(type->wrapper, i)->attisdropped)
				type->wrapper_attno = i;
		}
	}
}

/* Look up the function to call; also after an error, to forget its state */
static void
init_function(BatchState *state, CallState *call)
{
	fmgr_info_cxt(OidIsValid(call->twinid) ? call->twinid : call->funcid,
				  &call->flinfo, state->css.ss.ps.state->es_query_cxt);
	/* a function called in its own name may look at the expression */
	if (!OidIsValid(call->twinid))
		fmgr_info_set_expr(call->expr, &call->flinfo);
}

/* Prepare a call whose expr, funcid and twinid are set */
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
	init_function(state, call);

	if (OidIsValid(call->twinid))
	{
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
		init_type(&call->argtypes[j], type,
				  OidIsValid(call->twinid) ? twin_args[j] : InvalidOid);
	}
	init_type(&call->result, exprType(call->expr), twin_result);
}

/* One argument of the twin: an array of the values of items first ... */
static Datum
make_argument(CallState *call, int arg, int first, int n)
{
	BatchType  *type = &call->argtypes[arg];
	Datum	   *values = palloc(sizeof(Datum) * n);
	bool	   *nulls = palloc(sizeof(bool) * n);
	int			lbound = 1;

	for (int i = 0; i < n; i++)
	{
		int			position = (first + i) * call->nargs + arg;

		values[i] = call->values[position];
		nulls[i] = call->nulls[position];
		if (type->wrapper != NULL)
		{
			Datum	   *columns = palloc0(sizeof(Datum) * type->wrapper->natts);
			bool	   *isnull = palloc(sizeof(bool) * type->wrapper->natts);

			memset(isnull, true, sizeof(bool) * type->wrapper->natts);
			columns[type->wrapper_attno] = values[i];
			isnull[type->wrapper_attno] = nulls[i];
			values[i] = HeapTupleGetDatum(heap_form_tuple(type->wrapper, columns,
														  isnull));
			nulls[i] = false;
		}
	}
	return PointerGetDatum(construct_md_array(values, nulls, 1, &n, &lbound,
											  type->elemtype, type->elemlen,
											  type->elembyval, type->elemalign));
}

/* The value inside a composite element */
static Datum
unwrap(BatchType *type, Datum element, bool *isnull)
{
	HeapTupleHeader header = DatumGetHeapTupleHeader(element);
	HeapTupleData tuple;

	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = header;
	return heap_getattr(&tuple, type->wrapper_attno + 1, type->wrapper, isnull);
}

/* Take the results of items first ... out of the array the twin returned */
static void
take_results(BatchState *state, CallState *call, Datum result, int first, int n)
{
	ArrayType  *array = DatumGetArrayTypeP(result);
	Size		size = VARSIZE(array);
	ArrayType  *copy;
	Datum	   *elements;
	bool	   *nulls;
	int			nelements;

	if (ARR_ELEMTYPE(array) != call->result.elemtype)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_SRF_PROTOCOL_VIOLATED),
				 errmsg("function %s returned an array of type %s instead of %s",
						format_procedure(call->twinid),
						format_type_be(ARR_ELEMTYPE(array)),
						format_type_be(call->result.elemtype))));
	if (ARR_NDIM(array) > 1 ||
		ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) != n)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_SRF_PROTOCOL_VIOLATED),
				 errmsg("function %s returned %d results for %d inputs",
						format_procedure(call->twinid),
						ARR_NDIM(array) > 1 ? ARR_DIMS(array)[0] :
						ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)), n),
				 errdetail(ARR_NDIM(array) > 1 ?
						   "The array has %d dimensions." :
						   "The array has %d dimension.", ARR_NDIM(array)),
				 errhint("It must return one element for each element of its arguments, in the same order.")));

	copy = MemoryContextAllocHuge(state->batch_context, size);
	memcpy(copy, array, size);
	deconstruct_array(copy, call->result.elemtype, call->result.elemlen,
					  call->result.elembyval, call->result.elemalign,
					  &elements, &nulls, &nelements);
	for (int i = 0; i < n; i++)
	{
		bool		isnull = nulls[i];
		Datum		value = elements[i];

		if (!isnull && call->result.wrapper != NULL)
			value = unwrap(&call->result, value, &isnull);
		call->results[first + i] = value;
		call->result_nulls[first + i] = isnull;
	}
	call->result_bytes = (double) size / n;
}

/* Call the twin once for n items */
static void
call_twin(BatchState *state, CallState *call, int first, int n)
{
	FunctionCallInfo fcinfo = palloc0(SizeForFunctionCallInfo(call->nargs));
	PgStat_FunctionCallUsage usage;
	Datum		result;

	InitFunctionCallInfoData(*fcinfo, &call->flinfo, call->nargs,
							 call->collation, NULL, NULL);
	for (int j = 0; j < call->nargs; j++)
	{
		fcinfo->args[j].value = make_argument(call, j, first, n);
		fcinfo->args[j].isnull = false;
	}
	pgstat_init_function_usage(fcinfo, &usage);
	result = FunctionCallInvoke(fcinfo);
	pgstat_end_function_usage(&usage, true);

	if (fcinfo->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_NULL_VALUE_NOT_ALLOWED),
				 errmsg("function %s returned NULL instead of an array of %d results",
						format_procedure(call->twinid), n)));
	take_results(state, call, result, first, n);
}

/* Call the function itself for each of n items */
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
			fcinfo->args[j].value = call->values[i * call->nargs + j];
			fcinfo->args[j].isnull = call->nulls[i * call->nargs + j];
		}
		pgstat_init_function_usage(fcinfo, &usage);
		result = FunctionCallInvoke(fcinfo);
		pgstat_end_function_usage(&usage, true);

		oldcontext = MemoryContextSwitchTo(state->batch_context);
		call->result_nulls[i] = fcinfo->isnull;
		call->results[i] = fcinfo->isnull ? (Datum) 0 :
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

/* Answer the next n items; a BatchBlock */
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
		call_twin(state, call, call->answered, slice->n);
		error_context_stack = callback.previous;
	}
	else
		call_function(state, call, call->answered, slice->n);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Make sure that an item has its result.  It is the first that has none, since
 * items are numbered in the order of their rows and rows are served in order.
 *
 * Returns false if the item's error is to be held: it is in state->pending.
 */
bool
batch_answer(BatchState *state, CallState *call, int item)
{
	while (call->answered <= item)
	{
		Slice		slice = {call, call->nitems - call->answered};
		ErrorData  *error = NULL;
		instr_time	start;
		instr_time	duration;

		Assert(item == call->answered || call->slice == 0);
		if (call->slice > 0)
			slice.n = Min(slice.n, call->slice);

		MemoryContextReset(state->call_context);
		INSTR_TIME_SET_CURRENT(start);

		/* the error of one item that is asked for needs no care */
		if (!state->protect || (slice.n == 1 && !state->defer_errors))
			answer_slice(state, &slice);
		else
			error = batch_try(state, answer_slice, &slice);

		INSTR_TIME_SET_CURRENT(duration);
		INSTR_TIME_SUBTRACT(duration, start);
		batch_count_call(state, call, slice.n, INSTR_TIME_GET_MILLISEC(duration));

		if (error != NULL)
		{
			init_function(state, call);
			if (slice.n == 1)
			{
				state->pending = error;
				return false;
			}
			FreeErrorData(error);
			call->slice = 1;
			continue;
		}
		call->answered += slice.n;
		if (call->slice > 0)
			call->slice *= SLICE_GROWTH;
	}
	return true;
}
