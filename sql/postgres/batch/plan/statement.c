/*-------------------------------------------------------------------------
 *
 * statement.c
 *	  Rewriting one statement: its plan, its subplans, its dependencies.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "executor/executor.h"
#include "jit/jit.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/inval.h"
#include "utils/syscache.h"

static void find_max_id(Plan *plan, int *max_id);

static void
find_max_id_list(List *plans, int *max_id)
{
	ListCell   *lc;

	foreach(lc, plans)
		find_max_id(lfirst(lc), max_id);
}

/* The largest plan_node_id in a tree; EXPLAIN and DSM keys need them unique */
static void
find_max_id(Plan *plan, int *max_id)
{
	if (plan == NULL)
		return;
	check_stack_depth();

	*max_id = Max(*max_id, plan->plan_node_id);
	find_max_id(plan->lefttree, max_id);
	find_max_id(plan->righttree, max_id);
	switch (nodeTag(plan))
	{
		case T_Append:
			find_max_id_list(((Append *) plan)->appendplans, max_id);
			break;
		case T_MergeAppend:
			find_max_id_list(((MergeAppend *) plan)->mergeplans, max_id);
			break;
		case T_BitmapAnd:
			find_max_id_list(((BitmapAnd *) plan)->bitmapplans, max_id);
			break;
		case T_BitmapOr:
			find_max_id_list(((BitmapOr *) plan)->bitmapplans, max_id);
			break;
		case T_SubqueryScan:
			find_max_id(((SubqueryScan *) plan)->subplan, max_id);
			break;
		case T_CustomScan:
			find_max_id_list(((CustomScan *) plan)->custom_plans, max_id);
			break;
		default:
			break;
	}
}

/*
 * Is the statement under row security or a security barrier?  There a clause
 * must not get behind others that it was in front of.
 */
static bool
has_security_quals(PlannedStmt *stmt)
{
	ListCell   *lc;

	if (stmt->dependsOnRole)
		return true;
	foreach(lc, stmt->rtable)
	{
		if (lfirst_node(RangeTblEntry, lc)->security_barrier)
			return true;
	}
	return false;
}

/* Could WHERE CURRENT OF find the row that this plan returned last? */
static bool
is_simply_updatable(Plan *plan)
{
	ListCell   *lc;

	if (plan == NULL)
		return false;
	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
		case T_ForeignScan:
		case T_CustomScan:
			return true;
		case T_Result:
		case T_Limit:
			return is_simply_updatable(plan->lefttree);
		case T_SubqueryScan:
			return is_simply_updatable(((SubqueryScan *) plan)->subplan);
		case T_Append:
			foreach(lc, ((Append *) plan)->appendplans)
			{
				if (is_simply_updatable(lfirst(lc)))
					return true;
			}
			return false;
		default:
			return false;
	}
}

/* Does the plan call any function that is not built in? */
static bool
calls_own_functions(PlannedStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->invalItems)
	{
		if (lfirst_node(PlanInvalItem, lc)->cacheId == PROCOID)
			return true;
	}
	return false;
}

/* The plan must be made anew when a twin changes or goes */
static void
depend_on_twins(BatchRewrite *rw)
{
	ListCell   *lc;

	foreach(lc, rw->twins)
	{
		PlanInvalItem *input = makeNode(PlanInvalItem);

		input->cacheId = PROCOID;
		input->hashValue = GetSysCacheHashValue1(PROCOID,
												ObjectIdGetDatum(lfirst_oid(lc)));
		rw->stmt->invalItems = lappend(rw->stmt->invalItems, input);
	}
}

/*
 * Rewrite a statement's plan and its subplans in place, where they hold
 * anything to do.
 */
void
batch_rewrite_stmt(PlannedStmt *stmt, int cursor_options)
{
	BatchRewrite rw = {0};
	BatchDemand demand = {0};
	BatchDemand subplan_demand = {0};
	bool		scrollable = false;
	ListCell   *lc;

	/*
	 * The planner records every function that is not built in.  For nearly
	 * all statements this is all that the module costs.
	 */
	if (!batch_everything && !calls_own_functions(stmt))
		return;

	rw.stmt = stmt;
	rw.is_cursor = (cursor_options & CURSOR_OPT_FAST_PLAN) != 0;
	rw.has_security_quals = has_security_quals(stmt);
	find_max_id(stmt->planTree, &rw.last_node_id);
	find_max_id_list(stmt->subplans, &rw.last_node_id);

	if (rw.is_cursor)
	{
		/*
		 * A layer cannot run backwards, and a Material over it would hide the
		 * scan from WHERE CURRENT OF.  So SCROLL, where the plan could do
		 * both, keeps its plan.  Without SCROLL the cursor loses backward
		 * fetches, which PostgreSQL does not promise then.
		 */
		if (batch_everything && !(cursor_options & CURSOR_OPT_NO_SCROLL))
			return;
		if (cursor_options & CURSOR_OPT_SCROLL)
		{
			if (is_simply_updatable(stmt->planTree))
				return;
			scrollable = true;
		}
	}

	demand.may_stop = rw.is_cursor;
	stmt->planTree = batch_rewrite_plan(&rw, stmt->planTree, &demand);
	if (scrollable && !ExecSupportsBackwardScan(stmt->planTree))
		stmt->planTree = batch_add_material(&rw, stmt->planTree);

	subplan_demand.may_stop = true;
	foreach(lc, stmt->subplans)
	{
		if (lfirst(lc) != NULL)
			lfirst(lc) = batch_rewrite_plan(&rw, lfirst(lc), &subplan_demand);
	}

	depend_on_twins(&rw);

	/*
	 * The costs of the calls, which are those of a model, made the planner ask
	 * for the expressions to be compiled.  The calls are no expressions now.
	 */
	if (rw.twins != NIL)
		stmt->jitFlags = PGJIT_NONE;
}
