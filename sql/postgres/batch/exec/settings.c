/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings that functions were given by SET.
 *
 * ALTER FUNCTION f SET ... holds in every call of f.  Its twin is a function
 * with settings of its own: it is called under those of f that it lacks.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"

#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/syscache.h"

typedef struct Setting
{
	char	   *name;
	char	   *value;
} Setting;

/* What a function was given; a new list of Setting */
static List *
settings_of(Oid funcid)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
	List	   *settings = NIL;
	Datum		config;
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		return NIL;
	config = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig, &isnull);
	if (!isnull)
	{
		Datum	   *texts;
		int			n;

		deconstruct_array(DatumGetArrayTypeP(config), TEXTOID, -1, false,
						  TYPALIGN_INT, &texts, NULL, &n);
		for (int i = 0; i < n; i++)
		{
			Setting    *setting = palloc(sizeof(Setting));

			ParseLongOption(TextDatumGetCString(texts[i]), &setting->name,
							&setting->value);
			if (setting->value != NULL)
				settings = lappend(settings, setting);
		}
	}
	ReleaseSysCache(tuple);
	return settings;
}

/* The value that a function gives to a setting; NULL if it gives none */
static char *
value_of(List *settings, const char *name)
{
	ListCell   *lc;

	foreach(lc, settings)
	{
		Setting    *setting = lfirst(lc);

		if (pg_strcasecmp(setting->name, name) == 0)
			return setting->value;
	}
	return NULL;
}

/* Is the twin declared to be able to answer later? */
bool
batch_answers_later(Oid twinid)
{
	char	   *value = value_of(settings_of(twinid), "ml_udf.answers_later");
	bool		later = false;

	return value != NULL && parse_bool(value, &later) && later;
}

/* What the function was given and its twin was not; for batch_apply_settings() */
List *
batch_own_settings(Oid funcid, Oid twinid)
{
	List	   *of_twin = settings_of(twinid);
	List	   *own = NIL;
	ListCell   *lc;

	foreach(lc, settings_of(funcid))
	{
		Setting    *setting = lfirst(lc);

		if (value_of(of_twin, setting->name) == NULL)
			own = lappend(own, setting);
	}
	return own;
}

/*
 * Let these settings hold until batch_restore_settings() is given what this
 * returns, or the (sub)transaction is aborted; as for a call of their function.
 */
int
batch_apply_settings(List *settings)
{
	int			nestlevel;
	ListCell   *lc;

	if (settings == NIL)
		return 0;
	nestlevel = NewGUCNestLevel();
	foreach(lc, settings)
	{
		Setting    *setting = lfirst(lc);

		(void) set_config_option(setting->name, setting->value,
								 superuser() ? PGC_SUSET : PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	}
	return nestlevel;
}

/* The settings are again what they were before batch_apply_settings() */
void
batch_restore_settings(int nestlevel)
{
	if (nestlevel > 0)
		AtEOXact_GUC(true, nestlevel);
}
