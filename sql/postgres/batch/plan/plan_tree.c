/*-------------------------------------------------------------------------
 *
 * plan_tree.c
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
#include "plan.h"

#include "miscadmin.h"

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
 * Rewrite a plan tree for a consumer with this demand.  Nodes are changed in
 * place, expressions are not; returns the node, or what now stands for it.
 */
Plan *
batch_rewrite_plan(BatchRewrite *rw, Plan *plan, const BatchDemand *demand)
{
	BatchDemand any = batch_demand_streaming(demand);
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
			return batch_add_layers_above(rw, plan, demand);

		case T_ForeignScan:
			/* its child, if any, is an alternative of the remote join */
			if (((ForeignScan *) plan)->operation != CMD_SELECT)
				return plan;
			return batch_add_layers_above(rw, plan, demand);

		case T_SubqueryScan:
			{
				SubqueryScan *scan = (SubqueryScan *) plan;

				child = plan->qual == NIL ? *demand : any;
				scan->subplan = batch_rewrite_plan(rw, scan->subplan, &child);
				return batch_add_layers_above(rw, plan, demand);
			}

		case T_Result:
			/* without a child it makes one row: nothing to gather */
			if (plan->lefttree == NULL)
				return plan;
			child = plan->qual == NIL ? *demand : any;
			rewrite_children(rw, plan, &child);
			return batch_add_layers_above(rw, plan, demand);

		case T_ProjectSet:
			rewrite_children(rw, plan, &any);
			batch_extract_arguments(rw, plan, &any);
			return batch_add_layers_above(rw, plan, demand);

		case T_Agg:
			child = ((Agg *) plan)->aggstrategy == AGG_SORTED ? any : all;
			rewrite_children(rw, plan, &child);
			batch_extract_arguments(rw, plan, &child);
			return batch_add_layers_above(rw, plan, demand);

		case T_Group:
			rewrite_children(rw, plan, &any);
			return batch_add_layers_above(rw, plan, demand);

		case T_WindowAgg:
			/* a run condition ends it early */
			child = ((WindowAgg *) plan)->runCondition == NIL ? any :
				batch_demand_stoppable(demand);
			rewrite_children(rw, plan, &child);
			batch_extract_arguments(rw, plan, &child);
			return batch_add_layers_above(rw, plan, demand);

		case T_NestLoop:
			return batch_rewrite_nestloop(rw, (NestLoop *) plan, demand);
		case T_MergeJoin:
			return batch_rewrite_mergejoin(rw, (MergeJoin *) plan, demand);
		case T_HashJoin:
			return batch_rewrite_hashjoin(rw, (HashJoin *) plan, demand);

		case T_Gather:
		case T_GatherMerge:
			child = batch_demand_worker(demand);
			rewrite_children(rw, plan, &child);
			return batch_add_layers_above(rw, plan, demand);

		case T_Append:
			rewrite_list(rw, ((Append *) plan)->appendplans, demand);
			return batch_merge_append(rw, (Append *) plan);
		case T_MergeAppend:
			rewrite_list(rw, ((MergeAppend *) plan)->mergeplans, &any);
			return plan;

		case T_Limit:
			child = batch_demand_limit(rw, (Limit *) plan, demand);
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
