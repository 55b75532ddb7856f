/*-------------------------------------------------------------------------
 *
 * ml_udf_batch.c
 *	  Module start: settings and the planner hook.
 *
 * Batches where session_preload_libraries (or its like) names it; it asks the
 * server for no shared memory.  A session that loads it otherwise, as the triggers of a
 * watch do, gets these triggers' conditions and no batches: whether statements
 * batch is set by who runs the database, and not by what a session happened to
 * call before.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "optimizer/planner.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/plancache.h"

/* All else is hidden: modules are loaded into one name space */
#pragma GCC visibility push(default)
PG_MODULE_MAGIC;

extern void _PG_init(void);
#pragma GCC visibility pop

bool		batch_enabled = true;
int			gather_rows = 4096;
bool		batch_everything = false;
bool		batch_overlap = true;

static const struct config_enum_entry asked_options[] = {
	{"answers", BATCH_ASK_NOW, false},
	{"begin", BATCH_ASK_BEGIN, false},
	{"forget", BATCH_ASK_FORGET, false},
	{NULL, 0, false}
};

static planner_hook_type prev_planner_hook = NULL;
static ProcessUtility_hook_type prev_utility_hook = NULL;
static bool explaining = false;


static PlannedStmt *
batch_planner(Query *parse, const char *query_string, int cursor_options,
			  ParamListInfo params)
{
	PlannedStmt *stmt;

	if (prev_planner_hook)
		stmt = prev_planner_hook(parse, query_string, cursor_options, params);
	else
		stmt = standard_planner(parse, query_string, cursor_options, params);

	if (batch_enabled && !explaining)
		batch_rewrite_stmt(stmt, cursor_options);
	return stmt;
}

/*
 * With ml_udf.batch_everything, EXPLAIN shows the plan as it would be without
 * the module: PostgreSQL's regression suite compares plans, too.
 */
static void
batch_utility(PlannedStmt *pstmt, const char *query_string, bool read_only,
			  ProcessUtilityContext context, ParamListInfo params,
			  QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	bool		was_explaining = explaining;

	explaining = explaining ||
		(batch_everything && IsA(pstmt->utilityStmt, ExplainStmt));
	PG_TRY();
	{
		if (prev_utility_hook)
			prev_utility_hook(pstmt, query_string, read_only, context, params,
							  env, dest, qc);
		else
			standard_ProcessUtility(pstmt, query_string, read_only, context,
									params, env, dest, qc);
	}
	PG_FINALLY();
	{
		explaining = was_explaining;
	}
	PG_END_TRY();
}

/* A plan made under the other setting must not be used again */
static void
invalidate_plans(bool newval, void *extra)
{
	ResetPlanCache();
}

static bool
names_us(const char *libraries)
{
	return libraries != NULL && strstr(libraries, "ml_udf_batch") != NULL;
}

static bool
is_preloaded(void)
{
	return names_us(session_preload_libraries_string) ||
		names_us(shared_preload_libraries_string) ||
		names_us(local_preload_libraries_string);
}


void
_PG_init(void)
{
	note_init();
	if (!is_preloaded())
		return;
	DefineCustomBoolVariable("ml_udf.batching",
							 "Calls functions that have a batched twin for many rows at once.",
							 "Off calls them row by row, as PostgreSQL does on its own.",
							 &batch_enabled, true,
							 PGC_USERSET, 0, NULL, invalidate_plans, NULL);
	DefineCustomIntVariable("ml_udf.gather_rows",
							"Largest number of inputs in one batch.",
							"A batch also ends when its rows and inputs fill work_mem.",
							&gather_rows, 4096, 1, 1 << 20,
							PGC_USERSET, 0, NULL, NULL, NULL);

	DefineCustomBoolVariable("ml_udf.overlap",
							 "Gathers the next batch while the server computes one.",
							 "Off waits for each batch before the next is gathered.",
							 &batch_overlap, true,
							 PGC_USERSET, 0, NULL, NULL, NULL);

	/* For twins to read, in any language; those of ml_udf read the variable */
	DefineCustomEnumVariable("ml_udf.asked",
							 "What the batch node asks of the twin that it is calling.",
							 NULL,
							 &ml_udf_batch_asked, BATCH_ASK_NOW, asked_options,
							 PGC_INTERNAL,
							 GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL | GUC_DISALLOW_IN_FILE,
							 NULL, NULL, NULL);

	/*
	 * The module's own test: runs PostgreSQL's regression suite through the
	 * node.  It makes queries slower and nothing else.
	 */
	DefineCustomBoolVariable("ml_udf.batch_everything",
							 "Puts every function that is not volatile through the batch node.",
							 "For testing the node.",
							 &batch_everything, false,
							 PGC_SUSET, GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL,
							 NULL, invalidate_plans, NULL);

	/*
	 * The prefix stays unreserved: other settings of ml_udf are read by its
	 * functions, and exist as placeholders.
	 */

	RegisterCustomScanMethods(&batch_scan_methods);
	batch_twin_init();

	prev_planner_hook = planner_hook;
	planner_hook = batch_planner;
	prev_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = batch_utility;
}
