/*-------------------------------------------------------------------------
 *
 * join.c
 *	  Nested loops and merge joins.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

/* A Material over plan; init plans move up so that it stays their place */
Plan *
batch_add_material(BatchRewrite *rw, Plan *plan)
{
	Material   *material = makeNode(Material);
	Plan	   *node = &material->plan;
	ListCell   *lc;
	ListCell   *lcv;

	forboth(lc, plan->targetlist, lcv, batch_pass_through(plan))
	{
		TargetEntry *tle = flatCopyTargetEntry(lfirst_node(TargetEntry, lc));

		tle->expr = lfirst(lcv);
		node->targetlist = lappend(node->targetlist, tle);
	}
	node->lefttree = plan;
	node->startup_cost = plan->startup_cost;
	node->total_cost = plan->total_cost;
	node->plan_rows = plan->plan_rows;
	node->plan_width = plan->plan_width;
	node->parallel_safe = plan->parallel_safe;
	node->plan_node_id = ++rw->last_node_id;
	node->extParam = bms_copy(plan->extParam);
	node->allParam = bms_copy(plan->allParam);
	node->initPlan = plan->initPlan;
	plan->initPlan = NIL;
	return node;
}

/* Add the results at the end of a child's columns to a pass-through node */
void
batch_extend_targetlist(Plan *plan, List *columns)
{
	for (int i = list_length(plan->targetlist); i < list_length(columns); i++)
	{
		Node	   *column = list_nth(columns, i);
		Var		   *var = makeVar(OUTER_VAR, i + 1, exprType(column),
								  exprTypmod(column), exprCollation(column), 0);

		plan->targetlist = lappend(list_copy(plan->targetlist),
								   makeTargetEntry((Expr *) var, i + 1, NULL,
												   false));
	}
}

/*
 * Merge joins mark and restore a position of their inner side, which a layer
 * cannot; they may also leave either side before its end.  Rewritten in place;
 * returns the join, or the topmost layer above it.
 */
Plan *
batch_rewrite_mergejoin(BatchRewrite *rw, MergeJoin *join,
						const BatchDemand *demand)
{
	Plan	   *plan = &join->join.plan;
	BatchDemand some = batch_demand_stoppable(demand);
	int			nlayers;

	plan->lefttree = batch_rewrite_plan(rw, plan->lefttree, &some);
	nlayers = rw->nlayers;
	plan->righttree = batch_rewrite_plan(rw, plan->righttree, &some);
	if (rw->nlayers > nlayers && !join->skip_mark_restore &&
		!IsA(plan->righttree, Material) && !IsA(plan->righttree, Sort))
		plan->righttree = batch_add_material(rw, plan->righttree);
	return batch_add_layers_above(rw, plan, demand);
}

typedef struct PullUpContext
{
	NestLoop   *join;
	List	   *columns;		/* leaves that the inner side returns, in order */
} PullUpContext;

/* From the inner side's scan to the join: its columns, and its Params back */
static Node *
pull_up_mutator(Node *node, PullUpContext *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC)
	{
		ListCell   *lc;

		foreach(lc, context->join->nestParams)
		{
			NestLoopParam *param = lfirst_node(NestLoopParam, lc);

			if (param->paramno == ((Param *) node)->paramid)
				return copyObject((Node *) param->paramval);
		}
		return node;
	}
	if (batch_is_leaf(node))
	{
		ListCell   *lc;

		foreach(lc, context->columns)
		{
			if (equal(lfirst(lc), node))
				return (Node *) makeVar(INNER_VAR, foreach_current_index(lc) + 1,
										exprType(node), exprTypmod(node),
										exprCollation(node), 0);
		}
		elog(ERROR, "ml_udf: moved clause uses a column that is not supplied");
	}
	return expression_tree_mutator(node, pull_up_mutator, context);
}

static bool
is_relation_scan(Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
			return true;
		default:
			return false;
	}
}

/*
 * The inner side of a parameterized nested loop runs once per outer row; a
 * filter with a call there would see batches of a row or two.  For an inner
 * join the filter is as good above the join, where all rows come together.
 *
 * Not under row security: conditions of the join would then run before it.
 */
static void
pull_up_inner_filter(BatchRewrite *rw, NestLoop *join)
{
	Plan	   *plan = &join->join.plan;
	Plan	   *inner = plan->righttree;
	Memoize    *memoize = NULL;
	PullUpContext context = {join, NIL};
	List	   *moved;
	int			first;
	ListCell   *lc;

	if (join->join.jointype != JOIN_INNER || join->nestParams == NIL ||
		rw->has_security_quals)
		return;
	if (IsA(inner, Memoize))
	{
		memoize = (Memoize *) inner;
		inner = inner->lefttree;
	}
	if (!is_relation_scan(inner) || inner->initPlan != NIL)
		return;

	for (first = 0; first < list_length(inner->qual); first++)
	{
		if (batch_can_extract(rw, list_nth(inner->qual, first), NIL))
			break;
	}
	moved = list_copy_tail(inner->qual, first);
	if (moved == NIL || batch_expr_is_volatile(rw, (Node *) moved))
		return;

	/* the scan returns what the moved clauses need behind what it did */
	foreach(lc, inner->targetlist)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);

		context.columns = lappend(context.columns, tle->expr);
	}
	context.columns = batch_add_leaves(context.columns, (Node *) moved);
	inner->qual = list_copy_head(inner->qual, first);
	inner->targetlist = list_copy(inner->targetlist);
	for (int i = list_length(inner->targetlist); i < list_length(context.columns); i++)
		inner->targetlist = lappend(inner->targetlist,
									makeTargetEntry(list_nth(context.columns, i),
													i + 1, NULL, false));
	if (memoize != NULL)
	{
		batch_extend_targetlist(&memoize->plan, context.columns);
		/* one row per key was what passed the filter */
		memoize->singlerow = false;
	}

	join->join.inner_unique = false;
	moved = (List *) pull_up_mutator((Node *) moved, &context);

	/* the cheap conditions go first, unless the filter kept them from errors */
	if (batch_expr_may_fail((Node *) join->join.joinqual))
		join->join.joinqual = list_concat(moved, join->join.joinqual);
	else
		join->join.joinqual = list_concat_copy(join->join.joinqual, moved);
}

/* Rewrite a nested loop in place; returns it, or the topmost layer above it */
Plan *
batch_rewrite_nestloop(BatchRewrite *rw, NestLoop *join,
					   const BatchDemand *demand)
{
	Plan	   *plan = &join->join.plan;
	BatchDemand outer_demand = batch_demand_streaming(demand);
	BatchDemand inner_demand;

	pull_up_inner_filter(rw, join);

	/* these leave the inner side at its first match */
	if (join->join.inner_unique || join->join.jointype == JOIN_SEMI ||
		join->join.jointype == JOIN_ANTI)
		inner_demand = batch_demand_stoppable(demand);
	else
		inner_demand = batch_demand_streaming(demand);

	plan->lefttree = batch_rewrite_plan(rw, plan->lefttree, &outer_demand);
	plan->righttree = batch_rewrite_plan(rw, plan->righttree, &inner_demand);
	return batch_add_layers_above(rw, plan, demand);
}
