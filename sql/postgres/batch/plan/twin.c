/*-------------------------------------------------------------------------
 *
 * twin.c
 *	  Which calls can be batched: a function and its declared twin.
 *
 * f(A, ...) -> R is batchable when its schema holds f_batch(A[], ...) -> R[]
 * of the same owner, parallel label and security, both of them plain and not
 * volatile.
 * The owner matters: nobody else can slip a twin under somebody's function.
 *
 * An array type has no array type.  Where A or R is an array (a vector of
 * features, an embedding), the twin takes or returns an array of a composite
 * type with that array as its only column.  For any R it may also return
 * bytea[]: each value in the binary format that R's receive function reads.
 * That is for vectors: a language like PL/Python makes numbers one by one from
 * text, which takes it milliseconds for a vector of a thousand.
 *
 * Lookups are cached per backend.  Any change of pg_proc empties the cache,
 * since a CREATE FUNCTION may have brought a twin that was missing.  Plans
 * that use a twin depend on it by a PlanInvalItem (see statement.c).
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/nodeFuncs.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#define TWIN_SUFFIX "_batch"

typedef struct TwinEntry
{
	Oid			funcid;			/* hash key; must be first */
	bool		batchable;
	Oid			twinid;			/* InvalidOid: batchable without one */
} TwinEntry;

static HTAB *twin_cache = NULL;
static bool twin_cache_valid = false;
static bool twin_cache_everything = false;


static void
invalidate_twins(Datum arg, int cacheid, uint32 hashvalue)
{
	twin_cache_valid = false;
}

/* Called once, when the module is loaded */
void
batch_twin_init(void)
{
	CacheRegisterSyscacheCallback(PROCOID, invalidate_twins, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, invalidate_twins, (Datum) 0);
}

static bool
has_receive_function(Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = OidIsValid(((Form_pg_type) GETSTRUCT(tuple))->typreceive);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * How can an array of type arraytype carry values of type valuetype?
 *
 * Only results may have the binary form; what is asked for an argument is
 * answered with it all the same.
 */
BatchForm
batch_array_form(Oid arraytype, Oid valuetype)
{
	Oid			elemtype = get_element_type(arraytype);
	TupleDesc	tupdesc;
	int			nlive = 0;
	bool		matches = false;

	if (!OidIsValid(elemtype))
		return BATCH_FORM_NONE;
	/* a record's columns are not known before it is made */
	if (get_typtype(valuetype) == TYPTYPE_PSEUDO)
		return BATCH_FORM_NONE;
	if (elemtype == valuetype)
		return BATCH_FORM_PLAIN;
	if (elemtype == BYTEAOID)
		return has_receive_function(valuetype) ? BATCH_FORM_BINARY :
			BATCH_FORM_NONE;
	if (get_typtype(elemtype) != TYPTYPE_COMPOSITE)
		return BATCH_FORM_NONE;

	tupdesc = lookup_rowtype_tupdesc(elemtype, -1);
	for (int i = 0; i < tupdesc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(tupdesc, i);

		if (att->attisdropped)
			continue;
		nlive++;
		matches = (att->atttypid == valuetype);
	}
	ReleaseTupleDesc(tupdesc);

	return nlive == 1 && matches ? BATCH_FORM_COMPOSITE : BATCH_FORM_NONE;
}

/* A plain function that may be called earlier, and fewer times */
static bool
is_plain(Form_pg_proc proc)
{
	return proc->prokind == PROKIND_FUNCTION &&
		!proc->proretset &&
		proc->provolatile != PROVOLATILE_VOLATILE;
}

/* Is candidate the twin of proc? */
static bool
is_twin(Form_pg_proc proc, Form_pg_proc candidate)
{
	BatchForm	form;

	if (candidate->pronamespace != proc->pronamespace ||
		candidate->proowner != proc->proowner ||
		candidate->proparallel != proc->proparallel ||
		candidate->prosecdef != proc->prosecdef ||
		candidate->pronargs != proc->pronargs ||
		OidIsValid(candidate->provariadic) ||
		!is_plain(candidate))
		return false;

	if (batch_array_form(candidate->prorettype,
						 proc->prorettype) == BATCH_FORM_NONE)
		return false;
	for (int i = 0; i < proc->pronargs; i++)
	{
		form = batch_array_form(candidate->proargtypes.values[i],
								proc->proargtypes.values[i]);
		if (form != BATCH_FORM_PLAIN && form != BATCH_FORM_COMPOSITE)
			return false;
	}
	return true;
}

/* Search the twin of proc in its schema; InvalidOid if there is none */
static Oid
search_twin(Form_pg_proc proc)
{
	char		name[NAMEDATALEN];
	CatCList   *candidates;
	Oid			result = InvalidOid;

	if (proc->pronargs == 0 || OidIsValid(proc->provariadic) || !is_plain(proc))
		return InvalidOid;
	if (strlen(NameStr(proc->proname)) + strlen(TWIN_SUFFIX) >= NAMEDATALEN)
		return InvalidOid;
	snprintf(name, sizeof(name), "%s" TWIN_SUFFIX, NameStr(proc->proname));

	candidates = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	for (int i = 0; i < candidates->n_members; i++)
	{
		Form_pg_proc candidate =
			(Form_pg_proc) GETSTRUCT(&candidates->members[i]->tuple);

		if (is_twin(proc, candidate))
		{
			result = candidate->oid;
			break;
		}
	}
	ReleaseSysCacheList(candidates);
	return result;
}

/* Fill a cache entry from the catalogs */
static void
look_up(TwinEntry *entry)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(entry->funcid));
	Form_pg_proc proc;

	entry->batchable = false;
	entry->twinid = InvalidOid;
	if (!HeapTupleIsValid(tuple))
		return;
	proc = (Form_pg_proc) GETSTRUCT(tuple);

	entry->twinid = search_twin(proc);
	if (OidIsValid(entry->twinid))
		entry->batchable = true;
	else if (batch_everything)
	{
		/* Pseudo-types would need care that no twin ever needs */
		entry->batchable = is_plain(proc) &&
			(get_typtype(proc->prorettype) != TYPTYPE_PSEUDO ||
			 IsPolymorphicType(proc->prorettype));
	}
	ReleaseSysCache(tuple);
}

static TwinEntry *
get_entry(Oid funcid)
{
	TwinEntry  *entry;
	bool		found;

	if (twin_cache == NULL || !twin_cache_valid ||
		twin_cache_everything != batch_everything)
	{
		HASHCTL		ctl = {0};

		if (twin_cache != NULL)
			hash_destroy(twin_cache);
		twin_cache = NULL;
		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(TwinEntry);
		ctl.hcxt = CacheMemoryContext;
		twin_cache = hash_create("ml_udf twins", 64, &ctl,
								 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		twin_cache_valid = true;
		twin_cache_everything = batch_everything;
	}

	entry = hash_search(twin_cache, &funcid, HASH_FIND, NULL);
	if (entry == NULL)
	{
		/*
		 * The lookup reads catalogs, so it may both fail and invalidate the
		 * cache; enter only what is complete.
		 */
		TwinEntry	fresh;

		fresh.funcid = funcid;
		look_up(&fresh);
		entry = hash_search(twin_cache, &funcid, HASH_ENTER, &found);
		*entry = fresh;
	}
	return entry;
}

/* The function of a call; elog(ERROR) if the node is none */
Oid
batch_call_function(Node *call)
{
	if (IsA(call, FuncExpr))
		return ((FuncExpr *) call)->funcid;
	return castNode(OpExpr, call)->opfuncid;
}

/* The argument expressions of a call: its own list, not to be changed */
List *
batch_call_args(Node *call)
{
	if (IsA(call, FuncExpr))
		return ((FuncExpr *) call)->args;
	return castNode(OpExpr, call)->args;
}

/* The collation that a call's function is given */
Oid
batch_call_collation(Node *call)
{
	if (IsA(call, FuncExpr))
		return ((FuncExpr *) call)->inputcollid;
	return castNode(OpExpr, call)->inputcollid;
}

/*
 * Is this node itself a call that can be batched?  *twinid is its twin, or
 * InvalidOid where ml_udf.batch_everything batches a function without one.
 */
bool
batch_find_twin(Node *node, Oid *twinid)
{
	Oid			funcid;
	TwinEntry  *entry;

	if (IsA(node, FuncExpr))
	{
		FuncExpr   *func = (FuncExpr *) node;

		if (func->funcretset || func->funcvariadic || func->args == NIL)
			return false;
		funcid = func->funcid;
	}
	else if (batch_everything && IsA(node, OpExpr))
	{
		OpExpr	   *op = (OpExpr *) node;

		if (op->opretset || !OidIsValid(op->opfuncid))
			return false;
		if (get_typtype(op->opresulttype) == TYPTYPE_PSEUDO)
			return false;
		funcid = op->opfuncid;
	}
	else
		return false;

	/* Built-in functions have no twin: the common case needs no lookup */
	if (funcid < FirstNormalObjectId && !batch_everything)
		return false;

	entry = get_entry(funcid);
	*twinid = entry->twinid;
	return entry->batchable;
}

static bool
candidate_walker(Node *node, void *context)
{
	Oid			twinid;

	if (node == NULL)
		return false;
	if (batch_find_twin(node, &twinid))
		return true;
	return expression_tree_walker(node, candidate_walker, context);
}

/* Does the expression, or any of a list, contain a call that can be batched? */
bool
batch_has_candidate(Node *node)
{
	return candidate_walker(node, NULL);
}
