/*-------------------------------------------------------------------------
 *
 * append.c
 *	  One set of layers over an Append instead of one over each child.
 *
 * The partitions of a table are scanned alike, so the layers over the scans
 * compute the same things.  Over the Append they make full batches where each
 * partition alone might have only a few rows, and a LIMIT counts rows once.
 *
 * Layers refer to their child's columns by position, and batch_stack_layers()
 * numbers leaves in the order of their first use: so layers that do the same
 * are equal, whatever the columns' numbers in each partition are.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

/* Do two target lists compute the same, whatever their labels? */
static bool
same_expressions(List *a, List *b)
{
	ListCell   *lca;
	ListCell   *lcb;

	if (list_length(a) != list_length(b))
		return false;
	forboth(lca, a, lcb, b)
	{
		if (!equal(lfirst_node(TargetEntry, lca)->expr,
				   lfirst_node(TargetEntry, lcb)->expr))
			return false;
	}
	return true;
}

static bool
same_layer(CustomScan *a, CustomScan *b)
{
	return same_expressions(a->custom_scan_tlist, b->custom_scan_tlist) &&
		same_expressions(a->scan.plan.targetlist, b->scan.plan.targetlist) &&
		equal(a->scan.plan.qual, b->scan.plan.qual) &&
		equal(a->custom_exprs, b->custom_exprs) &&
		equal(a->custom_private, b->custom_private) &&
		a->scan.plan.initPlan == NIL && b->scan.plan.initPlan == NIL;
}

/* Are the layers over two plans the same, one by one? */
static bool
same_layers(Plan *a, Plan *b)
{
	while (batch_is_layer(a) && batch_is_layer(b))
	{
		if (!same_layer((CustomScan *) a, (CustomScan *) b))
			return false;
		a = a->lefttree;
		b = b->lefttree;
	}
	return !batch_is_layer(a) && !batch_is_layer(b);
}

static Plan *
below_layers(Plan *plan)
{
	while (batch_is_layer(plan))
		plan = plan->lefttree;
	return plan;
}

/*
 * Merge the layers of all children if they are the same.  The children then
 * return what their layers took as input; the Append, which does not project,
 * returns that as well, and the first child's layers go on top.
 *
 * Not for a cursor: WHERE CURRENT OF looks for a scan of one table.  Returns the
 * topmost layer, or the Append, unchanged, where they are not the same.
 */
Plan *
batch_merge_append(BatchRewrite *rw, Append *append)
{
	Plan	   *plan = &append->plan;
	Plan	   *top = linitial(append->appendplans);
	Plan	   *bottom = NULL;
	List	   *targetlist;
	ListCell   *lc;

	if (rw->is_cursor || list_length(append->appendplans) < 2 ||
		!batch_is_layer(top) ||
		list_length(top->targetlist) != list_length(plan->targetlist))
		return plan;
	for_each_from(lc, append->appendplans, 1)
	{
		if (!same_layers(top, lfirst(lc)))
			return plan;
	}

	foreach(lc, append->appendplans)
		lfirst(lc) = below_layers(lfirst(lc));

	targetlist = batch_make_targetlist(batch_pass_through(linitial(append->appendplans)));

	for (Plan *layer = top; batch_is_layer(layer); layer = layer->lefttree)
	{
		layer->startup_cost = plan->startup_cost;
		layer->total_cost = plan->total_cost;
		layer->plan_rows = plan->plan_rows;
		layer->plan_width = plan->plan_width;
		layer->parallel_safe = plan->parallel_safe;
		layer->extParam = bms_union(layer->extParam, plan->extParam);
		layer->allParam = bms_union(layer->allParam, plan->allParam);
		bottom = layer;
	}
	bottom->lefttree = plan;

	/* columns keep the labels that the Append gave them */
	for (int i = 0; i < list_length(top->targetlist); i++)
	{
		TargetEntry *tle = flatCopyTargetEntry(list_nth_node(TargetEntry,
															 plan->targetlist, i));

		tle->expr = list_nth_node(TargetEntry, top->targetlist, i)->expr;
		lfirst(list_nth_cell(top->targetlist, i)) = tle;
	}
	plan->targetlist = targetlist;

	top->initPlan = plan->initPlan;
	plan->initPlan = NIL;
	return top;
}
