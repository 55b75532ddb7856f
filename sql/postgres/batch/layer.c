/*-------------------------------------------------------------------------
 *
 * layer.c
 *	  Building the layers that compute calls over (or below) a plan node.
 *
 * A layer is a CustomScan over no relation, with its child in lefttree.  Its
 * scan tuple, described by custom_scan_tlist, is the child's columns followed
 * by the results of its calls; target list and qual refer to that tuple by
 * INDEX_VAR, so that the core builds slot, projection and filter, and EXPLAIN
 * finds its way down.
 *
 * While layers are built, an expression of the owner node is read as one over
 * "leaves": what the owner itself must supply (Vars, aggregates, window
 * functions, set-returning functions) and the results of calls.  A List of
 * leaves says what the columns of a plan node are.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"

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

bool
batch_is_leaf(Node *node)
{
	switch (nodeTag(node))
	{
		case T_Var:
		case T_Aggref:
		case T_GroupingFunc:
		case T_WindowFunc:
			return true;
		case T_FuncExpr:
			return ((FuncExpr *) node)->funcretset;
		case T_OpExpr:
			return ((OpExpr *) node)->opretset;
		default:
			return false;
	}
}

/*
 * Position of a leaf in a list of columns, from 1; 0 if it is not there.
 *
 * In a finished plan, Vars with the same varno and varattno are the same
 * column, whatever else they record (the outer joins above them, say).
 */
static AttrNumber
column_position(List *columns, Node *leaf)
{
	ListCell   *lc;

	foreach(lc, columns)
	{
		Node	   *column = lfirst(lc);

		if (nodeTag(column) != nodeTag(leaf))
			continue;
		if (IsA(leaf, Var) ?
			(((Var *) leaf)->varattno == ((Var *) column)->varattno &&
			 ((Var *) leaf)->varno == ((Var *) column)->varno) :
			equal(column, leaf))
			return foreach_current_index(lc) + 1;
	}
	return 0;
}

static bool
leaves_walker(Node *node, List **leaves)
{
	if (node == NULL)
		return false;
	if (batch_is_leaf(node))
	{
		if (column_position(*leaves, node) == 0)
			*leaves = lappend(*leaves, node);
		return false;
	}
	return expression_tree_walker(node, leaves_walker, leaves);
}

/* Add the leaves of an expression that are not in the list yet */
List *
batch_add_leaves(List *leaves, Node *node)
{
	(void) leaves_walker(node, &leaves);
	return leaves;
}

typedef struct ColumnMap
{
	List	   *columns;
	int			varno;
} ColumnMap;

static Node *
columns_mutator(Node *node, ColumnMap *map)
{
	if (node == NULL)
		return NULL;
	if (batch_is_leaf(node))
	{
		AttrNumber	position = column_position(map->columns, node);

		if (position == 0)
			elog(ERROR, "ml_udf: expression uses a column that is not supplied");
		return (Node *) makeVar(map->varno, position, exprType(node),
								exprTypmod(node), exprCollation(node), 0);
	}
	return expression_tree_mutator(node, columns_mutator, map);
}

/* Replace each leaf by a Var for its position among the columns */
Node *
batch_to_columns(Node *node, List *columns, int varno)
{
	ColumnMap	map = {columns, varno};

	return columns_mutator(node, &map);
}

static Node *
results_mutator(Node *node, ColumnMap *map)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Var) && ((Var *) node)->varno == BATCH_CALL_VAR)
		return (Node *) makeVar(map->varno,
								column_position(map->columns, node),
								exprType(node), exprTypmod(node),
								exprCollation(node), 0);
	return expression_tree_mutator(node, results_mutator, map);
}

/* Replace the results of calls, and nothing else, by Vars for their columns */
Node *
batch_finish_calls(Node *node, List *columns, int varno)
{
	ColumnMap	map = {columns, varno};

	return results_mutator(node, &map);
}

/* The results of the calls of one stage, as leaves */
static List *
stage_results(BatchCut *cut, int stage)
{
	List	   *results = NIL;
	ListCell   *lc;

	foreach(lc, cut->calls)
	{
		BatchCall  *call = lfirst(lc);

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
stage_clauses(BatchCut *cut, int stage)
{
	if (stage > list_length(cut->clauses))
		return NIL;
	return list_nth(cut->clauses, stage - 1);
}

static int
count_stages(BatchCut *cut)
{
	int			stages = list_length(cut->clauses);
	ListCell   *lc;

	foreach(lc, cut->calls)
		stages = Max(stages, ((BatchCall *) lfirst(lc))->stage);
	return stages;
}

/*
 * What this stage must return for the stages above it and the target list:
 * leaves, and results of the calls made so far.  Stage 0 is the owner itself.
 */
static List *
leaves_above(BatchCut *cut, int stage, List *targetlist, List *prefilter)
{
	List	   *leaves = batch_add_leaves(NIL, (Node *) prefilter);
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, cut->calls)
	{
		BatchCall  *call = lfirst(lc);

		if (call->stage > stage)
		{
			leaves = batch_add_leaves(leaves, call->expr);
			leaves = batch_add_leaves(leaves, (Node *) call->guards);
		}
	}
	for (int s = stage + 1; s <= list_length(cut->clauses); s++)
		leaves = batch_add_leaves(leaves, (Node *) stage_clauses(cut, s));
	leaves = batch_add_leaves(leaves, (Node *) targetlist);

	foreach(lc, leaves)
	{
		Var		   *var = lfirst(lc);

		if (IsA(var, Var) && var->varno == BATCH_CALL_VAR &&
			((BatchCall *) list_nth(cut->calls, var->varattno - 1))->stage > stage)
			continue;
		result = lappend(result, var);
	}
	return result;
}

/* A target list of bare expressions */
static List *
make_targetlist(List *exprs)
{
	List	   *targetlist = NIL;
	ListCell   *lc;

	foreach(lc, exprs)
		targetlist = lappend(targetlist,
							 makeTargetEntry(lfirst(lc),
											 list_length(targetlist) + 1,
											 NULL, false));
	return targetlist;
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
		layer->flags |= topmost ? BATCH_PEEKED | BATCH_PHANTOM : BATCH_PEEKED;
	if (exact && demand->limit_count != NULL)
	{
		layer->limit_count = demand->limit_count;
		layer->limit_offset = demand->limit_offset;
		if (demand->limit_final)
			layer->flags |= BATCH_LIMIT_FINAL;
	}
}

/* Build the layer of one stage over a child with these columns */
static Plan *
make_layer(BatchRewrite *rw, BatchCut *cut, int stage, Plan *child,
		   List *columns, List *targetlist, List *prefilter, Plan *owner,
		   const BatchDemand *demand, bool exact, bool topmost)
{
	CustomScan *cscan = makeNode(CustomScan);
	BatchLayer	layer = {0};
	List	   *scan_columns = list_concat_copy(columns,
												stage_results(cut, stage));
	List	   *scan_exprs = NIL;
	ListCell   *lc;

	foreach(lc, columns)
		scan_exprs = lappend(scan_exprs,
							 batch_to_columns(lfirst(lc), columns, OUTER_VAR));
	foreach(lc, cut->calls)
	{
		BatchCall  *call = lfirst(lc);
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
	}
	layer.prefilter = (List *) batch_to_columns((Node *) prefilter, columns,
												OUTER_VAR);

	inherit_plan(rw, &cscan->scan.plan, child, owner);
	cscan->scan.plan.parallel_aware = demand->in_worker;
	cscan->scan.plan.targetlist = (List *)
		batch_to_columns((Node *) targetlist, scan_columns, INDEX_VAR);
	cscan->scan.plan.qual = (List *)
		batch_to_columns((Node *) stage_clauses(cut, stage), scan_columns,
						 INDEX_VAR);
	cscan->scan.scanrelid = 0;
	cscan->flags = CUSTOMPATH_SUPPORT_PROJECTION;
	cscan->custom_scan_tlist = make_targetlist(scan_exprs);
	cscan->methods = &batch_scan_methods;

	layer.kept = kept_columns(&cscan->scan.plan, list_length(columns));
	set_demand(&layer, demand, exact, topmost);
	if (rw->is_cursor)
		layer.flags |= BATCH_CURRENT_OF;
	/* A subplan cannot be run in a subtransaction of its own, see execute.c */
	if ((batch_expr_may_fail((Node *) layer.calls) ||
		 batch_expr_may_fail((Node *) layer.guards) ||
		 batch_expr_may_fail((Node *) layer.prefilter)) &&
		!batch_has_subplan((Node *) layer.calls) &&
		!batch_has_subplan((Node *) layer.prefilter))
		layer.flags |= BATCH_INPUT_FALLIBLE;
	if (batch_expr_may_fail((Node *) cscan->scan.plan.qual) &&
		!batch_has_subplan((Node *) cscan->scan.plan.qual))
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
 * whose expressions were cut.  Returns the topmost layer.
 */
Plan *
batch_add_layers(BatchRewrite *rw, BatchCut *cut, Plan *child, List *columns,
				 List *targetlist, List *prefilter, Plan *owner,
				 const BatchDemand *demand)
{
	int			nstages = count_stages(cut);
	Plan	   *top = child;

	for (int stage = 1; stage <= nstages; stage++)
	{
		List	   *output = NIL;
		List	   *stage_tlist = targetlist;
		bool		exact = (stage > 1 || prefilter == NIL);

		/* a LIMIT above says nothing about rows that are filtered first */
		for (int s = stage; s <= nstages; s++)
			exact = exact && stage_clauses(cut, s) == NIL;

		if (stage < nstages)
		{
			output = leaves_above(cut, stage, targetlist, NIL);
			stage_tlist = make_targetlist(output);
		}
		top = make_layer(rw, cut, stage, top, columns, stage_tlist,
						 stage == 1 ? prefilter : NIL, owner, demand, exact,
						 stage == nstages);
		columns = output;
	}
	return top;
}

/* Cut the expressions of a target list; the entries keep their labels */
static List *
cut_targetlist(BatchCut *cut, List *targetlist)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, targetlist)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);
		Expr	   *expr = (Expr *) batch_cut_expr(cut, (Node *) tle->expr);

		tle = flatCopyTargetEntry(tle);
		tle->expr = expr;
		result = lappend(result, tle);
	}
	return result;
}

/* The first clause with a call to cut; the number of clauses if there is none */
static int
first_cut(BatchRewrite *rw, List *clauses, List *targetlist)
{
	ListCell   *lc;

	foreach(lc, clauses)
	{
		if (batch_can_cut(rw, lfirst(lc), targetlist))
			return foreach_current_index(lc);
	}
	return list_length(clauses);
}

/*
 * Where reading ahead must not be noticed, a clause that may fail is taken out
 * of the node below and tested while rows are gathered, where its error can
 * wait until the row is asked for.  Returns the first clause to take.
 */
static int
first_fallible(BatchRewrite *rw, List *clauses, int end)
{
	ListCell   *lc;
	int			first = end;

	foreach(lc, clauses)
	{
		Node	   *clause = lfirst(lc);
		int			i = foreach_current_index(lc);

		if (i >= end)
			break;
		if (first == end && batch_expr_may_fail(clause))
			first = i;
		/* all of those behind it move, too: their order matters */
		if (first < end &&
			(batch_has_subplan(clause) ||
			 batch_expr_is_volatile(rw, clause)))
			return end;
	}
	return first;
}

/* The node, if it is an inner join: its condition is a filter applied first */
static Join *
inner_join(Plan *plan)
{
	if ((IsA(plan, NestLoop) || IsA(plan, MergeJoin) || IsA(plan, HashJoin)) &&
		((Join *) plan)->jointype == JOIN_INNER)
		return (Join *) plan;
	return NULL;
}

/* May a layer run the node ahead, once it is left with these clauses only? */
static bool
may_run_ahead(BatchRewrite *rw, Plan *plan, List *clauses, bool may_stop)
{
	List	   *qual = plan->qual;
	List	   *targetlist = plan->targetlist;
	List	   *initplans = plan->initPlan;
	Join	   *join = inner_join(plan);
	List	   *joinqual = join != NULL ? join->joinqual : NIL;
	bool		result;

	if (batch_total_effects(rw) == 0)
		return true;

	plan->qual = clauses;
	plan->targetlist = NIL;
	plan->initPlan = NIL;
	if (join != NULL)
		join->joinqual = NIL;
	result = batch_may_run_ahead(rw, plan, may_stop);
	if (join != NULL)
		join->joinqual = joinqual;
	plan->qual = qual;
	plan->targetlist = targetlist;
	plan->initPlan = initplans;
	return result;
}

/*
 * A WindowAgg's run condition is tested on what the node returns: its Vars,
 * whose varno means nothing, count the target list's entries.
 */
static bool
is_output_var(Node *node)
{
	return IsA(node, Var) && !IS_SPECIAL_VARNO(((Var *) node)->varno);
}

/* The entries' new positions */
static Node *
run_condition_mutator(Node *node, List **lists)
{
	if (node == NULL)
		return NULL;
	if (is_output_var(node))
	{
		TargetEntry *tle = list_nth(lists[0], ((Var *) node)->varattno - 1);
		Var		   *var = copyObject((Var *) node);

		var->varattno = column_position(lists[1], (Node *) tle->expr);
		if (var->varattno == 0)
			elog(ERROR, "ml_udf: run condition uses a column that is not supplied");
		return (Node *) var;
	}
	return expression_tree_mutator(node, run_condition_mutator, lists);
}

static bool
run_condition_walker(Node *node, List **lists)
{
	if (node == NULL)
		return false;
	if (is_output_var(node))
	{
		TargetEntry *tle = list_nth(lists[0], ((Var *) node)->varattno - 1);

		lists[1] = batch_add_leaves(lists[1], (Node *) tle->expr);
		/* only a bare leaf keeps its value when it moves */
		return !batch_is_leaf((Node *) tle->expr);
	}
	return expression_tree_walker(node, run_condition_walker, lists);
}

/*
 * Take the calls out of a projecting node's filter and target list.
 *
 * The clauses before the first one with a call stay.  That one and all behind
 * it move above the node, in order: a security barrier or a clause that
 * protects another one goes on doing so.  So does the whole target list, which
 * must not be evaluated for rows that the filter drops; the node returns the
 * leaves instead.  Returns the node or the topmost layer over it.
 */
Plan *
batch_project(BatchRewrite *rw, Plan *plan, const BatchDemand *demand)
{
	BatchCut	cut;
	Join	   *join = inner_join(plan);
	List	   *clauses = plan->qual;
	List	   *targetlist;
	List	   *leaves;
	List	   *prefilter = NIL;
	List	   *lists[2];
	int			njoin = 0;
	int			nkept;
	int			nclauses;
	bool		exact;
	Plan	   *top;

	if (join != NULL)
	{
		njoin = list_length(join->joinqual);
		clauses = list_concat_copy(join->joinqual, plan->qual);
	}
	/* a window's filter depends on its pass-through mode, so it stays */
	if (IsA(plan, WindowAgg))
		clauses = NIL;

	nclauses = list_length(clauses);
	nkept = first_cut(rw, clauses, plan->targetlist);
	if (nkept == nclauses &&
		!batch_can_cut(rw, (Node *) plan->targetlist, plan->targetlist))
		return plan;

	/* Reading ahead is safe if it is not ahead, or if nobody can tell */
	exact = demand->limit_count != NULL && nclauses == nkept;
	if (demand->may_stop && !exact)
	{
		int			first = first_fallible(rw, clauses, nkept);

		prefilter = list_copy_head(list_copy_tail(clauses, first),
								   nkept - first);
		nkept = first;
	}
	if (!may_run_ahead(rw, plan,
					   IsA(plan, WindowAgg) ? plan->qual :
					   list_copy_head(clauses, nkept),
					   demand->may_stop && !exact))
		return plan;

	batch_cut_begin(&cut, rw, plan->targetlist);
	for (int i = nkept + list_length(prefilter); i < nclauses; i++)
		batch_cut_clause(&cut, list_nth(clauses, i));
	targetlist = cut_targetlist(&cut, plan->targetlist);

	leaves = leaves_above(&cut, 0, targetlist, prefilter);

	if (IsA(plan, WindowAgg))
	{
		WindowAgg  *window = (WindowAgg *) plan;

		lists[0] = plan->targetlist;
		lists[1] = leaves;
		if (run_condition_walker((Node *) window->runCondition, lists))
			return plan;
		leaves = lists[1];
		window->runCondition = (List *)
			run_condition_mutator((Node *) window->runCondition, lists);
	}

	if (join != NULL)
	{
		if (nkept < njoin)
		{
			/* a first match by what is left might not be the real one */
			join->joinqual = list_copy_head(clauses, nkept);
			join->inner_unique = false;
			plan->qual = NIL;
		}
		else
			plan->qual = list_copy_head(plan->qual, nkept - njoin);
	}
	else if (!IsA(plan, WindowAgg))
		plan->qual = list_copy_head(plan->qual, nkept);
	plan->targetlist = make_targetlist(leaves);

	top = batch_add_layers(rw, &cut, plan, leaves, targetlist, prefilter, plan,
						   demand);

	/* Params set here may be used by what moved up, and by what stayed */
	top->initPlan = plan->initPlan;
	plan->initPlan = NIL;
	return top;
}

/*
 * Put layers below a node whose own expressions (arguments of aggregates, hash
 * keys, ...) were cut.  They return the child's columns unchanged, then the
 * results, then extra expressions over these.  *columns is set to what the new child returns, in order, so that
 * batch_finish_calls() can finish the cut expressions of user, their node.
 */
Plan *
batch_feed(BatchRewrite *rw, BatchCut *cut, Plan *user, Plan *child,
		   List *extra, List **columns, const BatchDemand *demand)
{
	Plan	   *top;
	List	   *inputs = NIL;
	List	   *targetlist = NIL;
	ListCell   *lc;

	foreach(lc, child->targetlist)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);
		Node	   *expr = (Node *) tle->expr;
		Var		   *var = makeVar(OUTER_VAR, tle->resno, exprType(expr),
								  exprTypmod(expr), exprCollation(expr), 0);

		inputs = lappend(inputs, var);
		tle = flatCopyTargetEntry(tle);
		tle->expr = (Expr *) var;
		targetlist = lappend(targetlist, tle);
	}

	*columns = list_copy(inputs);
	for (int stage = 1; stage <= count_stages(cut); stage++)
	{
		List	   *results = stage_results(cut, stage);

		*columns = list_concat(*columns, results);
		foreach(lc, results)
			targetlist = lappend(targetlist,
								 makeTargetEntry(lfirst(lc),
												 list_length(targetlist) + 1,
												 NULL, false));
	}
	*columns = list_concat(*columns, extra);
	foreach(lc, extra)
		targetlist = lappend(targetlist,
							 makeTargetEntry(lfirst(lc),
											 list_length(targetlist) + 1,
											 NULL, false));
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
