/*-------------------------------------------------------------------------
 *
 * note_key.c
 *	  What the WHEN of a watch's triggers calls: the key of a row that came,
 *	  changed or went is noted, and the trigger is not fired.
 *
 * A condition is evaluated while the row is at hand: nothing is queued for
 * the end of the statement, no row is kept or read again, and no function of
 * another language is called.  False says that nothing is left to do for the
 * trigger's function.  Where this module is not installed, functions of the
 * same names say true, and the trigger's function notes the key.
 *
 *-------------------------------------------------------------------------
 */
#include "note.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(ml_udf_note_key);
PG_FUNCTION_INFO_V1(ml_udf_note_change);
extern Datum ml_udf_note_key(PG_FUNCTION_ARGS);
extern Datum ml_udf_note_change(PG_FUNCTION_ARGS);
#pragma GCC visibility pop

/* A type, looked up once a statement; the rest where a value asks for it */
typedef struct ValueType
{
	Oid			type;
	bool		has_layout;
	int16		length;
	bool		by_value;
	FmgrInfo	output;			/* fn_oid 0: not looked up */
} ValueType;

/* Types of the arguments from the second on, as the call has them */
typedef struct ArgumentTypes
{
	ValueType	key;
	ValueType	input;
} ArgumentTypes;


static void
look_up(FmgrInfo *flinfo, int argument, ValueType *found)
{
	found->type = get_fn_expr_argtype(flinfo, argument);
	if (!OidIsValid(found->type))
		elog(ERROR, "ml_udf: the type of argument %d is not known", argument + 1);
}

static char *
text_of(FmgrInfo *flinfo, ValueType *type, Datum value)
{
	if (!OidIsValid(type->output.fn_oid))
	{
		Oid			output;
		bool		is_varlena;

		getTypeOutputInfo(type->type, &output, &is_varlena);
		fmgr_info_cxt(output, &type->output, flinfo->fn_mcxt);
	}
	return OutputFunctionCall(&type->output, value);
}

static ArgumentTypes *
types_of(FmgrInfo *flinfo, int input)
{
	ArgumentTypes *types = flinfo->fn_extra;

	if (types == NULL)
	{
		types = MemoryContextAllocZero(flinfo->fn_mcxt, sizeof(ArgumentTypes));
		look_up(flinfo, 1, &types->key);
		if (input > 0)
			look_up(flinfo, input, &types->input);
		flinfo->fn_extra = types;
	}
	return types;
}

static void
add(FmgrInfo *flinfo, int32 watch, ValueType *type, Datum key)
{
	switch (type->type)
	{
#ifdef USE_FLOAT8_BYVAL			/* an int64 is a Datum */
		case INT2OID:
			note_add(watch, true, Int64GetDatum((int64) DatumGetInt16(key)));
			break;
		case INT4OID:
			note_add(watch, true, Int64GetDatum((int64) DatumGetInt32(key)));
			break;
		case INT8OID:
			note_add(watch, true, key);
			break;
#endif
		default:
			note_add(watch, false, CStringGetTextDatum(text_of(flinfo, type, key)));
			break;
	}
}

/*
 * Whether two values are the same, bit by bit: an equality operator may take
 * different inputs for equal.  Values that an UPDATE leaves as they are share
 * what is stored out of line, which then is not read.
 */
static bool
same(ValueType *type, Datum was, Datum now)
{
	if (!type->has_layout)
	{
		get_typlenbyval(type->type, &type->length, &type->by_value);
		type->has_layout = true;
	}
	if (!type->by_value && type->length == -1)
	{
		Size		size = VARSIZE_ANY(DatumGetPointer(was));

		if (size == VARSIZE_ANY(DatumGetPointer(now)) &&
			memcmp(DatumGetPointer(was), DatumGetPointer(now), size) == 0)
			return true;
	}
	return datum_image_eq(was, now, type->by_value, type->length);
}

/* (watch, key) of a row that came or went */
Datum
ml_udf_note_key(PG_FUNCTION_ARGS)
{
	if (!PG_ARGISNULL(0) && !PG_ARGISNULL(1))
	{
		ArgumentTypes *types = types_of(fcinfo->flinfo, 0);

		add(fcinfo->flinfo, PG_GETARG_INT32(0), &types->key, PG_GETARG_DATUM(1));
	}
	PG_RETURN_BOOL(false);
}

/* (watch, key before, key now, input before, input now) of a row that changed */
Datum
ml_udf_note_change(PG_FUNCTION_ARGS)
{
	ArgumentTypes *types;
	int32		watch;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2))
		PG_RETURN_BOOL(false);
	types = types_of(fcinfo->flinfo, 3);
	watch = PG_GETARG_INT32(0);
	if (!same(&types->key, PG_GETARG_DATUM(1), PG_GETARG_DATUM(2)))
	{
		add(fcinfo->flinfo, watch, &types->key, PG_GETARG_DATUM(1));
		add(fcinfo->flinfo, watch, &types->key, PG_GETARG_DATUM(2));
	}
	else if (PG_ARGISNULL(3) != PG_ARGISNULL(4) ||
			 (!PG_ARGISNULL(3) &&
			  !same(&types->input, PG_GETARG_DATUM(3), PG_GETARG_DATUM(4))))
		add(fcinfo->flinfo, watch, &types->key, PG_GETARG_DATUM(2));
	PG_RETURN_BOOL(false);
}
