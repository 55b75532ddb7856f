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
 * same names say true, and the trigger's function notes the key.  Most
 * statements do not come here: see condition.c.
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

/* Of the arguments, as the call has them: looked up once a statement */
typedef struct ArgumentTypes
{
	NoteType	key;
	NoteType	input;
} ArgumentTypes;


static void
look_up(FmgrInfo *flinfo, int argument, NoteType *found)
{
	found->type = get_fn_expr_argtype(flinfo, argument);
	if (!OidIsValid(found->type))
		elog(ERROR, "ml_udf: the type of argument %d is not known", argument + 1);
	get_typlenbyval(found->type, &found->length, &found->by_value);
}

/* input: which argument it is, 0 for none */
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

static char *
text_of(Oid type, Datum value)
{
	Oid			output;
	bool		is_varlena;

	getTypeOutputInfo(type, &output, &is_varlena);
	return OidOutputFunctionCall(output, value);
}

/* Note a row that came or went */
void
note_key(int32 watch, NoteType type, Datum key)
{
	switch (type.type)
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
		case TEXTOID:
		case VARCHAROID:
			note_add(watch, false, key);
			break;
		default:
			note_add(watch, false, CStringGetTextDatum(text_of(type.type, key)));
			break;
	}
}

/*
 * Whether two values are the same, bit by bit: an equality operator may take
 * different inputs for equal.  Values that an UPDATE leaves as they are share
 * what is stored out of line, which then is not read.
 */
static bool
same(NoteType type, NullableDatum was, NullableDatum now)
{
	if (was.isnull || now.isnull)
		return was.isnull && now.isnull;
	if (!type.by_value && type.length == -1)
	{
		Size		size = VARSIZE_ANY(DatumGetPointer(was.value));

		if (size == VARSIZE_ANY(DatumGetPointer(now.value)) &&
			memcmp(DatumGetPointer(was.value), DatumGetPointer(now.value), size) == 0)
			return true;
	}
	return datum_image_eq(was.value, now.value, type.by_value, type.length);
}

/* Note a row that was updated, if its key or its input is another one than before */
void
note_change(int32 watch, NoteType key, NullableDatum key_was, NullableDatum key_now,
			NoteType input, NullableDatum input_was, NullableDatum input_now)
{
	if (key_was.isnull || key_now.isnull)
		return;
	if (!same(key, key_was, key_now))
	{
		note_key(watch, key, key_was.value);
		note_key(watch, key, key_now.value);
	}
	else if (!same(input, input_was, input_now))
		note_key(watch, key, key_now.value);
}

/* (watch, key) of a row that came or went */
Datum
ml_udf_note_key(PG_FUNCTION_ARGS)
{
	if (!PG_ARGISNULL(0) && !PG_ARGISNULL(1))
		note_key(PG_GETARG_INT32(0), types_of(fcinfo->flinfo, 0)->key, PG_GETARG_DATUM(1));
	PG_RETURN_BOOL(false);
}

/* (watch, key before, key now, input before, input now) of a row that changed */
Datum
ml_udf_note_change(PG_FUNCTION_ARGS)
{
	if (!PG_ARGISNULL(0))
	{
		ArgumentTypes *types = types_of(fcinfo->flinfo, 3);

		note_change(PG_GETARG_INT32(0), types->key, fcinfo->args[1], fcinfo->args[2],
					types->input, fcinfo->args[3], fcinfo->args[4]);
	}
	PG_RETURN_BOOL(false);
}
