/*-------------------------------------------------------------------------
 *
 * demand.c
 *	  What happens above a place of the plan, as far as it matters below.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/nodeFuncs.h"

/* What a child sees whose rows are used as they come, in unknown number */
BatchDemand
batch_demand_streaming(const BatchDemand *demand)
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
	BatchDemand result = batch_demand_streaming(demand);

	result.reads_all = true;
	result.may_stop = false;
	return result;
}

/* What a child sees whose reader is made to stop early */
BatchDemand
batch_demand_stoppable(const BatchDemand *demand)
{
	BatchDemand result = batch_demand_streaming(demand);

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
BatchDemand
batch_demand_limit(BatchRewrite *rw, Limit *limit, const BatchDemand *demand)
{
	BatchDemand result;

	if (limit->limitCount == NULL ||
		(IsA(limit->limitCount, Const) &&
		 ((Const *) limit->limitCount)->constisnull))
		return batch_demand_streaming(demand);

	result = batch_demand_stoppable(demand);
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
BatchDemand
batch_demand_worker(const BatchDemand *demand)
{
	BatchDemand result = *demand;

	if (exec_param_walker(result.limit_count, NULL) ||
		exec_param_walker(result.limit_offset, NULL))
		result = batch_demand_streaming(demand);
	result.in_worker = true;
	return result;
}
