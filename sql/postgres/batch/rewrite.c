/*-------------------------------------------------------------------------
 *
 * rewrite.c
 *	  The walk over a finished plan: which node allows what.
 *
 * The plan is rewritten after the planner is done with it, because only then
 * is it settled where an expression is computed: the planner carries sort
 * keys, grouping expressions and window inputs down to nodes that project.
 *
 * Children come first, so that a node sees what its child finally returns.
 * Node types that are not named here, foreign CustomScans among them, keep
 * their whole subtree as it is.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "optimizer/optimizer.h"
#include "utils/inval.h"
#include "utils/syscache.h"

/* What a child sees whose rows are used as they come, in unknown number */
BatchDemand
batch_demand_any(const BatchDemand *demand)
{
	BatchDemand result = *demand;

	result.limit_count = NULL;
	result.limit_offset = NULL;
	result.limit_final = false;
	return result;
}

/* What a child sees that is read to its end before anything is returned */
BatchDemand
batch_demand_all(const BatchDemand *demand)
{
	BatchDemand result = batch_demand_any(demand);

	result.reads_all = true;
	result.may_stop = false;
	return result;
}

/* What a child sees whose reader is made to stop early */
BatchDemand
batch_demand_some(const BatchDemand *demand)
{
	BatchDemand result = batch_demand_any(demand);

	result.reads_all = false;
	result.may_stop = true;
	return result;
}

static bool
exec_param_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC)
		return true;
	return expression_tree_walker(node, exec_param_walker, context);
}

/* A LIMIT: its reader wants so many rows, if it can be known by evaluation */
static BatchDemand
limit_demand(BatchRewrite *rw, Limit *limit, const BatchDemand *demand)
{
	BatchDemand result;

	if (limit->limitCount == NULL ||
		(IsA(limit->limitCount, Const) &&
		 ((Const *) limit->limitCount)->constisnull))
		return batch_demand_any(demand);

	result = batch_demand_some(demand);
	if (!batch_expr_is_volatile(rw, limit->limitCount) &&
		!batch_expr_is_volatile(rw, limit->limitOffset) &&
		!batch_has_subplan(limit->limitCount) &&
		!batch_has_subplan(limit->limitOffset))
	{
		result.limit_count = limit->limitCount;
		result.limit_offset = limit->limitOffset;
		result.limit_final = (limit->limitOption == LIMIT_OPTION_COUNT);
	}
	return result;
}

/* Below a Gather; only constants and external Params travel to a worker */
static BatchDemand
worker_demand(const BatchDemand *demand)
{
	BatchDemand result = *demand;

	if (exec_param_walker(result.limit_count, NULL) ||
		exec_param_walker(result.limit_offset, NULL))
		result = batch_demand_any(demand);
	result.in_worker = true;
	return result;
}

static void
rewrite_children(BatchRewrite *rw, Plan *plan, const BatchDemand *demand)
{
	if (plan->lefttree != NULL)
		plan->lefttree = batch_rewrite_plan(rw, plan->lefttree, demand);
	if (plan->righttree != NULL)
		plan->righttree = batch_rewrite_plan(rw, plan->righttree, demand);
}

static void
rewrite_list(BatchRewrite *rw, List *plans, const BatchDemand *demand)
{
	ListCell   *lc;

	foreach(lc, plans)
		lfirst(lc) = batch_rewrite_plan(rw, lfirst(lc), demand);
}

/*
 * Cut the inputs of aggregates, window functions or set-returning functions:
 * they are evaluated for every row of the child, whatever becomes of their
 * function.  (A window function may in fact skip the argument of some rows.)
 */
static Node *
cut_inputs(Node *node, BatchCut *cut)
{
	List	   *guards = cut->guards;
	bool		blocked = cut->blocked;

	if (node == NULL)
		return NULL;
	if (IsA(node, Aggref))
	{
		Aggref	   *aggref = makeNode(Aggref);
		List	   *args = NIL;
		ListCell   *lc;

		*aggref = *(Aggref *) node;
		if (aggref->aggfilter != NULL)
		{
			aggref->aggfilter = (Expr *)
				batch_cut_expr(cut, (Node *) aggref->aggfilter);
			batch_push_guard(cut, (Node *) aggref->aggfilter);
		}
		foreach(lc, aggref->args)
		{
			TargetEntry *tle = flatCopyTargetEntry(lfirst_node(TargetEntry, lc));

			tle->expr = (Expr *) batch_cut_expr(cut, (Node *) tle->expr);
			args = lappend(args, tle);
		}
		aggref->args = args;
		cut->guards = guards;
		cut->blocked = blocked;
		return (Node *) aggref;
	}
	if (IsA(node, WindowFunc))
	{
		WindowFunc *func = makeNode(WindowFunc);

		*func = *(WindowFunc *) node;
		if (func->aggfilter != NULL)
		{
			func->aggfilter = (Expr *)
				batch_cut_expr(cut, (Node *) func->aggfilter);
			batch_push_guard(cut, (Node *) func->aggfilter);
		}
		func->args = NIL;
		for (int i = 0; i < list_length(((WindowFunc *) node)->args); i++)
			func->args = lappend(func->args,
								 batch_cut_expr(cut, list_nth(((WindowFunc *) node)->args, i)));
		cut->guards = guards;
		cut->blocked = blocked;
		return (Node *) func;
	}
	if (IsA(node, FuncExpr) && ((FuncExpr *) node)->funcretset)
	{
		FuncExpr   *func = makeNode(FuncExpr);

		*func = *(FuncExpr *) node;
		func->args = NIL;
		for (int i = 0; i < list_length(((FuncExpr *) node)->args); i++)
			func->args = lappend(func->args,
								 batch_cut_expr(cut, list_nth(((FuncExpr *) node)->args, i)));
		return (Node *) func;
	}
	return expression_tree_mutator(node, cut_inputs, cut);
}

/* Feed the inputs of a node's aggregates and their like by layers below it */
static void
feed_inputs(BatchRewrite *rw, Plan *plan, const BatchDemand *child_demand)
{
	BatchCut	cut;
	List	   *targetlist;
	List	   *qual;
	List	   *columns;

	if ((!batch_has_candidate((Node *) plan->targetlist) &&
		 !batch_has_candidate((Node *) plan->qual)) ||
		!batch_may_run_ahead(rw, plan->lefttree, child_demand->may_stop))
		return;

	batch_cut_begin(&cut, rw, NIL);
	targetlist = (List *) cut_inputs((Node *) plan->targetlist, &cut);
	qual = (List *) cut_inputs((Node *) plan->qual, &cut);
	if (cut.calls == NIL)
		return;
	plan->lefttree = batch_feed(rw, &cut, plan, plan->lefttree, NIL,
								&columns, child_demand);
	plan->targetlist = (List *)
		batch_finish_calls((Node *) targetlist, columns, OUTER_VAR);
	plan->qual = (List *)
		batch_finish_calls((Node *) qual, columns, OUTER_VAR);
}

/*
 * Rewrite a plan tree for a consumer with this demand.  Nodes are changed in
 * place, expressions are not; returns the node, or what now stands for it.
 */
Plan *
batch_rewrite_plan(BatchRewrite *rw, Plan *plan, const BatchDemand *demand)
{
	BatchDemand any = batch_demand_any(demand);
	BatchDemand all = batch_demand_all(demand);
	BatchDemand child;

	check_stack_depth();

	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
		case T_FunctionScan:
		case T_ValuesScan:
		case T_TableFuncScan:
		case T_CteScan:
		case T_NamedTuplestoreScan:
		case T_WorkTableScan:
			return batch_project(rw, plan, demand);

		case T_ForeignScan:
			/* its child, if any, is an alternative of the remote join */
			if (((ForeignScan *) plan)->operation != CMD_SELECT)
				return plan;
			return batch_project(rw, plan, demand);

		case T_SubqueryScan:
			{
				SubqueryScan *scan = (SubqueryScan *) plan;

				child = plan->qual == NIL ? *demand : any;
				scan->subplan = batch_rewrite_plan(rw, scan->subplan, &child);
				return batch_project(rw, plan, demand);
			}

		case T_Result:
			/* without a child it makes one row: nothing to gather */
			if (plan->lefttree == NULL)
				return plan;
			child = plan->qual == NIL ? *demand : any;
			rewrite_children(rw, plan, &child);
			return batch_project(rw, plan, demand);

		case T_ProjectSet:
			rewrite_children(rw, plan, &any);
			feed_inputs(rw, plan, &any);
			return batch_project(rw, plan, demand);

		case T_Agg:
			child = ((Agg *) plan)->aggstrategy == AGG_SORTED ? any : all;
			rewrite_children(rw, plan, &child);
			feed_inputs(rw, plan, &child);
			return batch_project(rw, plan, demand);

		case T_Group:
			rewrite_children(rw, plan, &any);
			return batch_project(rw, plan, demand);

		case T_WindowAgg:
			/* a run condition ends it early */
			child = ((WindowAgg *) plan)->runCondition == NIL ? any :
				batch_demand_some(demand);
			rewrite_children(rw, plan, &child);
			feed_inputs(rw, plan, &child);
			return batch_project(rw, plan, demand);

		case T_NestLoop:
			return batch_rewrite_nestloop(rw, (NestLoop *) plan, demand);
		case T_MergeJoin:
			return batch_rewrite_mergejoin(rw, (MergeJoin *) plan, demand);
		case T_HashJoin:
			return batch_rewrite_hashjoin(rw, (HashJoin *) plan, demand);

		case T_Gather:
		case T_GatherMerge:
			child = worker_demand(demand);
			rewrite_children(rw, plan, &child);
			return batch_project(rw, plan, demand);

		case T_Append:
			rewrite_list(rw, ((Append *) plan)->appendplans, demand);
			return batch_merge_append(rw, (Append *) plan);
		case T_MergeAppend:
			rewrite_list(rw, ((MergeAppend *) plan)->mergeplans, &any);
			return plan;

		case T_Limit:
			child = limit_demand(rw, (Limit *) plan, demand);
			rewrite_children(rw, plan, &child);
			return plan;

		case T_LockRows:
			/* it may skip rows, and then asks for more than the limit */
			child = *demand;
			child.limit_final = false;
			rewrite_children(rw, plan, &child);
			return plan;

		case T_Sort:
		case T_Hash:
		case T_ModifyTable:
			rewrite_children(rw, plan, &all);
			return plan;

		case T_IncrementalSort:
		case T_Material:
		case T_Memoize:
		case T_Unique:
		case T_SetOp:
		case T_RecursiveUnion:
			rewrite_children(rw, plan, &any);
			return plan;

		default:
			return plan;
	}
}

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
is_secured(PlannedStmt *stmt)
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
		PlanInvalItem *item = makeNode(PlanInvalItem);

		item->cacheId = PROCOID;
		item->hashValue = GetSysCacheHashValue1(PROCOID,
												ObjectIdGetDatum(lfirst_oid(lc)));
		rw->stmt->invalItems = lappend(rw->stmt->invalItems, item);
	}
}

/* Rewrite a statement's plan and its subplans, where they hold anything to do */
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
	rw.secured = is_secured(stmt);
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
}
