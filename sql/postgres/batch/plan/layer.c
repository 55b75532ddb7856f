/*-------------------------------------------------------------------------
 *
 * layer.c
 *	  Building the layers that compute calls over a plan node.
 *
 * A layer is a CustomScan over no relation, with its child in lefttree.  Its
 * scan tuple, described by custom_scan_tlist, is the child's columns followed
 * by the results of its calls; target list and qual refer to that tuple by
 * INDEX_VAR, so that the core builds slot, projection and filter, and EXPLAIN
 * finds its way down.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"

/* Is this plan node one of ours? */
bool
batch_is_layer(Plan *plan)
{
	return IsA(plan, CustomScan) &&
		((CustomScan *) plan)->methods == &batch_scan_methods;
}

/*
 * A plan must survive copyObject() and nodeToString(), so what a layer knows
 * is kept in two lists.
 */
static void
layer_pack(CustomScan *cscan, BatchLayer *layer)
{
	cscan->custom_exprs = list_make5(layer->calls, layer->guards,
									 layer->prefilter, layer->limit_count,
									 layer->limit_offset);
	cscan->custom_private = list_make3(layer->twins, layer->kept,
									   list_make1_int(layer->flags));
}

/* Fill *layer with what layer_pack() kept; the lists are the plan's own */
void
batch_layer_unpack(CustomScan *cscan, BatchLayer *layer)
{
	layer->calls = (List *) linitial(cscan->custom_exprs);
	layer->guards = (List *) lsecond(cscan->custom_exprs);
	layer->prefilter = (List *) lthird(cscan->custom_exprs);
	layer->limit_count = (Node *) lfourth(cscan->custom_exprs);
	layer->limit_offset = (Node *) list_nth(cscan->custom_exprs, 4);
	layer->twins = (List *) linitial(cscan->custom_private);
	layer->kept = (List *) lsecond(cscan->custom_private);
	layer->flags = linitial_int((List *) lthird(cscan->custom_private));
}

/* The results of the calls of one stage, as leaves */
List *
batch_stage_results(ExtractContext *context, int stage)
{
	List	   *results = NIL;
	ListCell   *lc;

	foreach(lc, context->calls)
	{
		ExtractedCall  *call = lfirst(lc);

		if (call->stage == stage)
			results = lappend(results,
							  makeVar(BATCH_CALL_VAR,
									  foreach_current_index(lc) + 1,
									  exprType(call->expr),
									  exprTypmod(call->expr),
									  exprCollation(call->expr), 0));
	}
	return results;
}

static List *
stage_clauses(ExtractContext *context, int stage)
{
	if (stage > list_length(context->clauses))
		return NIL;
	return list_nth(context->clauses, stage - 1);
}

/* The number of the last stage; 0 if nothing was extracted */
int
batch_count_stages(ExtractContext *context)
{
	int			stages = list_length(context->clauses);
	ListCell   *lc;

	foreach(lc, context->calls)
		stages = Max(stages, ((ExtractedCall *) lfirst(lc))->stage);
	return stages;
}

/*
 * What this stage must return for the stages above it and the target list:
 * leaves, and results of the calls made so far.  Stage 0 is the owner itself.
 */
List *
batch_leaves_above(ExtractContext *context, int stage, List *targetlist,
				   List *prefilter)
{
	List	   *leaves = batch_add_leaves(NIL, (Node *) prefilter);
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, context->calls)
	{
		ExtractedCall  *call = lfirst(lc);

		if (call->stage > stage)
		{
			leaves = batch_add_leaves(leaves, call->expr);
			leaves = batch_add_leaves(leaves, (Node *) call->guards);
		}
	}
	for (int s = stage + 1; s <= list_length(context->clauses); s++)
		leaves = batch_add_leaves(leaves, (Node *) stage_clauses(context, s));
	leaves = batch_add_leaves(leaves, (Node *) targetlist);

	foreach(lc, leaves)
	{
		Var		   *var = lfirst(lc);

		if (IsA(var, Var) && var->varno == BATCH_CALL_VAR &&
			((ExtractedCall *) list_nth(context->calls, var->varattno - 1))->stage > stage)
			continue;
		result = lappend(result, var);
	}
	return result;
}

static bool
kept_walker(Node *node, Bitmapset **kept)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var))
	{
		*kept = bms_add_member(*kept, ((Var *) node)->varattno);
		return false;
	}
	return expression_tree_walker(node, kept_walker, kept);
}

/* Which of the child's columns do target list and qual of a layer use? */
static List *
kept_columns(Plan *layer, int nchild)
{
	Bitmapset  *used = NULL;
	List	   *kept = NIL;

	(void) kept_walker((Node *) layer->targetlist, &used);
	(void) kept_walker((Node *) layer->qual, &used);
	for (int attno = 1; attno <= nchild; attno++)
	{
		if (bms_is_member(attno, used))
			kept = lappend_int(kept, attno);
	}
	return kept;
}

/* Fill in what a new plan node has in common with its child and its owner */
static void
inherit_plan(BatchRewrite *rw, Plan *plan, Plan *child, Plan *owner)
{
	plan->startup_cost = owner->startup_cost;
	plan->total_cost = owner->total_cost;
	/* Hash sizes its table by these */
	plan->plan_rows = owner->plan_rows;
	plan->plan_width = owner->plan_width;
	plan->parallel_safe = owner->parallel_safe;
	plan->plan_node_id = ++rw->last_node_id;
	plan->lefttree = child;
	/* rescans are propagated by these */
	plan->extParam = bms_union(child->extParam, owner->extParam);
	plan->allParam = bms_union(child->allParam, owner->allParam);
}

/* May a layer that computes these and filters by that be asked for no more? */
static void
set_demand(BatchLayer *layer, const BatchDemand *demand, bool exact,
		   bool topmost)
{
	if (demand->reads_all)
		layer->flags |= BATCH_READS_ALL;
	if (demand->peeked)
		layer->flags |= topmost ? BATCH_PEEKED | BATCH_DUMMY_ROW : BATCH_PEEKED;
	if (exact && demand->limit_count != NULL)
	{
		layer->limit_count = demand->limit_count;
		layer->limit_offset = demand->limit_offset;
		if (demand->limit_final)
			layer->flags |= BATCH_LIMIT_FINAL;
	}
}

/*
 * May evaluating the expression raise an error that can be held?  A subplan
 * cannot be run in a subtransaction of its own, see exec/node.c.
 */
static bool
error_can_wait(Node *node)
{
	return batch_expr_may_fail(node) && !batch_has_subplan(node);
}

/* Build the layer of one stage over a child with these columns */
static Plan *
make_layer(BatchRewrite *rw, ExtractContext *context, int stage, Plan *child,
		   List *columns, List *targetlist, List *prefilter, Plan *owner,
		   const BatchDemand *demand, bool exact, bool topmost)
{
	CustomScan *cscan = makeNode(CustomScan);
	BatchLayer	layer = {0};
	List	   *scan_columns = list_concat_copy(columns,
												batch_stage_results(context, stage));
	List	   *scan_exprs = NIL;
	List	   *inputs = NIL;	/* what is evaluated while gathering */
	ListCell   *lc;

	foreach(lc, columns)
		scan_exprs = lappend(scan_exprs,
							 batch_to_columns(lfirst(lc), columns, OUTER_VAR));
	foreach(lc, context->calls)
	{
		ExtractedCall  *call = lfirst(lc);
		Node	   *expr;
		Node	   *guard = NULL;

		if (call->stage != stage)
			continue;
		expr = batch_to_columns(call->expr, columns, OUTER_VAR);
		if (call->guards != NIL)
			guard = batch_to_columns((Node *) make_ands_explicit(call->guards),
									 columns, OUTER_VAR);
		layer.calls = lappend(layer.calls, expr);
		layer.guards = lappend(layer.guards, guard);
		layer.twins = lappend_oid(layer.twins, call->twinid);
		if (OidIsValid(call->twinid))
			rw->twins = list_append_unique_oid(rw->twins, call->twinid);
		scan_exprs = lappend(scan_exprs, expr);
		inputs = lappend(lappend(inputs, batch_call_args(expr)), guard);
	}
	layer.prefilter = (List *) batch_to_columns((Node *) prefilter, columns,
												OUTER_VAR);
	inputs = lappend(inputs, layer.prefilter);

	inherit_plan(rw, &cscan->scan.plan, child, owner);
	cscan->scan.plan.parallel_aware = demand->in_worker;
	cscan->scan.plan.targetlist = (List *)
		batch_to_columns((Node *) targetlist, scan_columns, INDEX_VAR);
	cscan->scan.plan.qual = (List *)
		batch_to_columns((Node *) stage_clauses(context, stage), scan_columns,
						 INDEX_VAR);
	cscan->scan.scanrelid = 0;
	cscan->flags = CUSTOMPATH_SUPPORT_PROJECTION;
	cscan->custom_scan_tlist = batch_make_targetlist(scan_exprs);
	cscan->methods = &batch_scan_methods;

	layer.kept = kept_columns(&cscan->scan.plan, list_length(columns));
	set_demand(&layer, demand, exact, topmost);
	if (rw->is_cursor)
		layer.flags |= BATCH_CURRENT_OF;
	if (error_can_wait((Node *) inputs))
		layer.flags |= BATCH_INPUT_FALLIBLE;
	if (error_can_wait((Node *) cscan->scan.plan.qual))
		layer.flags |= BATCH_QUAL_FALLIBLE;
	layer_pack(cscan, &layer);

	/* an asynchronous child would not be run as one below this node */
	child->async_capable = false;
	rw->nlayers++;
	return (Plan *) cscan;
}

/*
 * Put the layers of all stages over child, whose columns are given as leaves.
 * targetlist is what the topmost returns, over leaves and results of calls;
 * prefilter holds clauses to apply before the first stage.  owner is the node
 * from whose expressions the calls were extracted: costs and Params are its.
 * Returns the topmost layer, or child if there is no stage.
 */
Plan *
batch_stack_layers(BatchRewrite *rw, ExtractContext *context, Plan *child,
				   List *columns, List *targetlist, List *prefilter,
				   Plan *owner, const BatchDemand *demand)
{
	int			nstages = batch_count_stages(context);
	Plan	   *top = child;

	for (int stage = 1; stage <= nstages; stage++)
	{
		List	   *output = NIL;
		List	   *stage_tlist = targetlist;
		bool		exact = (stage > 1 || prefilter == NIL);

		/* a LIMIT above says nothing about rows that are filtered first */
		for (int s = stage; s <= nstages; s++)
			exact = exact && stage_clauses(context, s) == NIL;

		if (stage < nstages)
		{
			output = batch_leaves_above(context, stage, targetlist, NIL);
			stage_tlist = batch_make_targetlist(output);
		}
		top = make_layer(rw, context, stage, top, columns, stage_tlist,
						 stage == 1 ? prefilter : NIL, owner, demand, exact,
						 stage == nstages);
		columns = output;
	}
	return top;
}
