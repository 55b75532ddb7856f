/*-------------------------------------------------------------------------
 *
 * arguments.c
 *	  Layers below a node: what its aggregates, window functions and
 *	  set-returning functions are given.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

/*
 * Put layers below a node whose own expressions (arguments of aggregates, hash
 * keys, ...) were cut.  They return the child's columns unchanged, then the
 * results of the calls, then extra expressions over these.  *columns is set to
 * what the new child returns, in order, so that batch_finish_calls() can
 * finish the cut expressions of user, their node.
 */
Plan *
batch_feed(BatchRewrite *rw, BatchCut *cut, Plan *user, Plan *child,
		   List *extra, List **columns, const BatchDemand *demand)
{
	List	   *inputs = batch_pass_through(child);
	List	   *targetlist = NIL;
	List	   *added = NIL;
	Plan	   *top;
	ListCell   *lc;
	ListCell   *lcv;

	forboth(lc, child->targetlist, lcv, inputs)
	{
		TargetEntry *tle = flatCopyTargetEntry(lfirst_node(TargetEntry, lc));

		tle->expr = lfirst(lcv);
		targetlist = lappend(targetlist, tle);
	}

	for (int stage = 1; stage <= batch_count_stages(cut); stage++)
		added = list_concat(added, batch_stage_results(cut, stage));
	added = list_concat(added, extra);
	foreach(lc, added)
		targetlist = lappend(targetlist,
							 makeTargetEntry(lfirst(lc),
											 list_length(targetlist) + 1,
											 NULL, false));
	*columns = list_concat_copy(inputs, added);

	top = batch_add_layers(rw, cut, child, inputs, targetlist, NIL, child,
						   demand);

	/* the user's Params are now evaluated in the layers, too */
	for (Plan *layer = top; layer != child; layer = layer->lefttree)
	{
		layer->extParam = bms_union(layer->extParam, user->extParam);
		layer->allParam = bms_union(layer->allParam, user->allParam);
	}
	return top;
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
			batch_push_guard(cut, batch_boolean_test((Node *) aggref->aggfilter,
													 IS_TRUE));
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
			batch_push_guard(cut, batch_boolean_test((Node *) func->aggfilter,
													 IS_TRUE));
		}
		func->args = batch_cut_list(cut, func->args);
		cut->guards = guards;
		cut->blocked = blocked;
		return (Node *) func;
	}
	if (IsA(node, FuncExpr) && ((FuncExpr *) node)->funcretset)
	{
		FuncExpr   *func = makeNode(FuncExpr);

		*func = *(FuncExpr *) node;
		func->args = batch_cut_list(cut, func->args);
		return (Node *) func;
	}
	return expression_tree_mutator(node, cut_inputs, cut);
}

/* Feed the inputs of a node's aggregates and their like by layers below it */
void
batch_feed_inputs(BatchRewrite *rw, Plan *plan, const BatchDemand *child_demand)
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
