/*-------------------------------------------------------------------------
 *
 * layers_below.c
 *	  Layers below a node: the arguments of its aggregates, window functions
 *	  and set-returning functions.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

/*
 * Put layers below a node, user, from whose own expressions (arguments of
 * aggregates, hash keys, ...) calls were extracted into context.  They return
 * the columns of child unchanged, then the results of the calls, then the extra
 * expressions over these.  Returns the topmost, the user's new child; *columns
 * is set to what it returns, in order, so that batch_resolve_calls() can finish
 * the user's expressions.
 */
Plan *
batch_add_layers_below(BatchRewrite *rw, ExtractContext *context, Plan *user,
					   Plan *child, List *extra, List **columns,
					   const BatchDemand *demand)
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

	for (int stage = 1; stage <= batch_count_stages(context); stage++)
		added = list_concat(added, batch_stage_results(context, stage));
	added = list_concat(added, extra);
	foreach(lc, added)
		targetlist = lappend(targetlist,
							 makeTargetEntry(lfirst(lc),
											 list_length(targetlist) + 1,
											 NULL, false));
	*columns = list_concat_copy(inputs, added);

	top = batch_stack_layers(rw, context, child, inputs, targetlist, NIL, child,
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
 * Extract from the arguments of aggregates, window functions or set-returning
 * functions: they are evaluated for every row of the child, whatever becomes of their
 * function.  (A window function may in fact skip the argument of some rows.)
 */
static Node *
arguments_mutator(Node *node, ExtractContext *context)
{
	List	   *guards = context->guards;
	bool		blocked = context->blocked;

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
				batch_extract_expr(context, (Node *) aggref->aggfilter);
			batch_push_guard(context, batch_boolean_test((Node *) aggref->aggfilter,
													 IS_TRUE));
		}
		foreach(lc, aggref->args)
		{
			TargetEntry *tle = flatCopyTargetEntry(lfirst_node(TargetEntry, lc));

			tle->expr = (Expr *) batch_extract_expr(context, (Node *) tle->expr);
			args = lappend(args, tle);
		}
		aggref->args = args;
		context->guards = guards;
		context->blocked = blocked;
		return (Node *) aggref;
	}
	if (IsA(node, WindowFunc))
	{
		WindowFunc *func = makeNode(WindowFunc);

		*func = *(WindowFunc *) node;
		if (func->aggfilter != NULL)
		{
			func->aggfilter = (Expr *)
				batch_extract_expr(context, (Node *) func->aggfilter);
			batch_push_guard(context, batch_boolean_test((Node *) func->aggfilter,
													 IS_TRUE));
		}
		func->args = batch_extract_list(context, func->args);
		context->guards = guards;
		context->blocked = blocked;
		return (Node *) func;
	}
	if (IsA(node, FuncExpr) && ((FuncExpr *) node)->funcretset)
	{
		FuncExpr   *func = makeNode(FuncExpr);

		*func = *(FuncExpr *) node;
		func->args = batch_extract_list(context, func->args);
		return (Node *) func;
	}
	return expression_tree_mutator(node, arguments_mutator, context);
}

/*
 * Compute the arguments of a node's aggregates and their like in layers below
 * it.  plan, and its lefttree, are changed in place; child_demand is what its
 * child sees.
 */
void
batch_extract_arguments(BatchRewrite *rw, Plan *plan, const BatchDemand *child_demand)
{
	ExtractContext	context;
	List	   *targetlist;
	List	   *qual;
	List	   *columns;

	if ((!batch_has_candidate((Node *) plan->targetlist) &&
		 !batch_has_candidate((Node *) plan->qual)) ||
		!batch_may_read_ahead(rw, plan->lefttree, child_demand->may_stop))
		return;

	batch_extract_begin(&context, rw, NIL);
	targetlist = (List *) arguments_mutator((Node *) plan->targetlist, &context);
	qual = (List *) arguments_mutator((Node *) plan->qual, &context);
	if (context.calls == NIL)
		return;
	plan->lefttree = batch_add_layers_below(rw, &context, plan, plan->lefttree, NIL,
								&columns, child_demand);
	plan->targetlist = (List *)
		batch_resolve_calls((Node *) targetlist, columns, OUTER_VAR);
	plan->qual = (List *)
		batch_resolve_calls((Node *) qual, columns, OUTER_VAR);
}
