/*-------------------------------------------------------------------------
 *
 * arrays.c
 *	  Values to arrays and back: the form in which a twin takes and returns them.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"
#include "compat.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/typcache.h"

/*
 * Look up how values of valuetype travel in arraytype, the twin's; InvalidOid
 * if the function itself is called.  Raises an error if they cannot.
 */
void
batch_type_init(BatchType *type, Oid valuetype, Oid arraytype)
{
	type->type = valuetype;
	get_typlenbyval(valuetype, &type->typlen, &type->typbyval);
	/* an array, or what an extension makes of one */
	type->wide = type->typlen == -1 &&
		(OidIsValid(get_element_type(valuetype)) ||
		 (valuetype >= FirstNormalObjectId &&
		  get_typtype(valuetype) == TYPTYPE_BASE));
	if (!OidIsValid(arraytype))
		return;

	type->form = batch_array_form(arraytype, valuetype);
	if (type->form == BATCH_FORM_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("type %s cannot carry values of type %s for a batch",
						format_type_be(arraytype), format_type_be(valuetype)),
				 errhint("The type was changed after the query was planned; run it again.")));
	type->elemtype = get_element_type(arraytype);
	get_typlenbyvalalign(type->elemtype, &type->elemlen, &type->elembyval,
						 &type->elemalign);
	if (type->form == BATCH_FORM_BINARY)
		getTypeBinaryInputInfo(valuetype, &type->receive, &type->receive_param);
	if (type->form == BATCH_FORM_COMPOSITE)
	{
		type->wrapper = lookup_rowtype_tupdesc_copy(type->elemtype, -1);
		for (int i = 0; i < type->wrapper->natts; i++)
		{
			if (!TupleDescAttr(type->wrapper, i)->attisdropped)
				type->wrapper_attno = i;
		}
	}
}

/* Look up what converts values; also after an error, to forget its state */
void
batch_type_reset(BatchType *type, MemoryContext context)
{
	if (type->form == BATCH_FORM_BINARY)
		fmgr_info_cxt(type->receive, &type->receive_flinfo, context);
}

/* One argument of the twin: an array of the values of n inputs from first on */
Datum
batch_make_argument(CallState *call, int arg, int first, int n)
{
	BatchType  *type = &call->argtypes[arg];
	Datum	   *values = palloc(sizeof(Datum) * n);
	bool	   *nulls = palloc(sizeof(bool) * n);
	int			lbound = 1;

	for (int i = 0; i < n; i++)
	{
		int			position = (first + i) * call->nargs + arg;

		values[i] = call->inputs.values[position];
		nulls[i] = call->inputs.nulls[position];
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

/*
 * Read n results in their binary format and copy them into context.  Returns
 * how many bytes they have.  Raises what the receive function does.
 */
static Size
receive_values(CallState *call, MemoryContext context, const Datum *elements,
				const bool *nulls, int first, int n)
{
	Datum	   *results = &call->inputs.results[first];
	bool	   *result_nulls = &call->inputs.result_nulls[first];
	BatchType  *type = &call->result;
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext,
												  "ml_udf receive",
												  ALLOCSET_DEFAULT_SIZES);
	StringInfoData buffer;
	Size		bytes = 0;

	initStringInfo(&buffer);
	for (int i = 0; i < n; i++)
	{
		bytea	   *element;
		Datum		value;
		MemoryContext oldcontext;

		CHECK_FOR_INTERRUPTS();

		results[i] = (Datum) 0;
		result_nulls[i] = nulls[i];
		if (nulls[i])
			continue;

		/* receive functions may write behind what they have read */
		element = DatumGetByteaPP(elements[i]);
		resetStringInfo(&buffer);
		appendBinaryStringInfo(&buffer, VARDATA_ANY(element),
							   VARSIZE_ANY_EXHDR(element));

		oldcontext = MemoryContextSwitchTo(scratch);
		value = ReceiveFunctionCall(&type->receive_flinfo, &buffer,
									type->receive_param, -1);
		if (buffer.cursor != buffer.len)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
					 errmsg("function %s returned a value that is not in the binary format of type %s",
							format_procedure(call->twinid),
							format_type_be(type->type)),
					 errdetail("Of its %d bytes, %d were read.", buffer.len,
							   buffer.cursor)));
		MemoryContextSwitchTo(context);
		results[i] = datumCopy(value, type->typbyval, type->typlen);
		bytes += datumGetSize(value, type->typbyval, type->typlen);
		MemoryContextSwitchTo(oldcontext);
		MemoryContextReset(scratch);
	}
	MemoryContextDelete(scratch);
	return bytes;
}

/*
 * The same, with the texts in it as UTF-8.  Receive functions take them to be
 * in the encoding of the client, of which a twin knows nothing.
 */
static Size
receive_results(CallState *call, MemoryContext context, const Datum *elements,
				const bool *nulls, int first, int n)
{
	int			encoding = pg_get_client_encoding();
	Size		bytes = 0;

	if (encoding == PG_UTF8 || PrepareClientEncoding(PG_UTF8) < 0)
		return receive_values(call, context, elements, nulls, first, n);
	PG_TRY();
	{
		(void) SetClientEncoding(PG_UTF8);
		bytes = receive_values(call, context, elements, nulls, first, n);
	}
	PG_FINALLY();
	{
		(void) SetClientEncoding(encoding);
	}
	PG_END_TRY();
	return bytes;
}

/*
 * Take the results of n inputs from first on out of the array the twin returned.
 * They are copied into the batch's context.  Raises an error if it is not an
 * array of n elements of the type that the twin declares.
 */
void
batch_take_results(BatchState *state, CallState *call, Datum result, int first, int n)
{
	ArrayType  *array = DatumGetArrayTypeP(result);
	Size		size = VARSIZE(array);
	ArrayType  *copy;
	Datum	   *elements;
	bool	   *nulls;
	int			nelements;

	/* the arrays of domains that PL/Python makes say that they hold the base type */
	if (ARR_ELEMTYPE(array) != call->result.elemtype &&
		ARR_ELEMTYPE(array) != getBaseType(call->result.elemtype))
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

	if (call->result.form == BATCH_FORM_BINARY)
	{
		deconstruct_array(array, call->result.elemtype, call->result.elemlen,
						  call->result.elembyval, call->result.elemalign,
						  &elements, &nulls, &nelements);
		size = receive_results(call, state->batch.context, elements, nulls,
							   first, n);
		if (n > 0)
			call->result_bytes = Max((double) size / n, 1);
		return;
	}

	copy = MemoryContextAllocHuge(state->batch.context, size);
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
		call->inputs.results[first + i] = value;
		call->inputs.result_nulls[first + i] = isnull;
	}
	if (n > 0)
		call->result_bytes = (double) size / n;
}
