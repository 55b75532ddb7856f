/*-------------------------------------------------------------------------
 *
 * layers_above.c
 *	  Layers above a node that projects: its filter and its target list.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

/* Extract from a target list; the entries keep their labels */
static List *
extract_targetlist(ExtractContext *context, List *targetlist)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, targetlist)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);
		Expr	   *expr = (Expr *) batch_extract_expr(context, (Node *) tle->expr);

		tle = flatCopyTargetEntry(tle);
		tle->expr = expr;
		result = lappend(result, tle);
	}
	return result;
}

/* The first clause with a call to extract; the number of clauses if none has */
static int
first_with_call(BatchRewrite *rw, List *clauses, List *targetlist)
{
	ListCell   *lc;

	foreach(lc, clauses)
	{
		if (batch_can_extract(rw, lfirst(lc), targetlist))
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

/* May layers read the node ahead, were these clauses all that it evaluates? */
static bool
may_read_ahead(BatchRewrite *rw, Plan *plan, List *clauses, bool may_stop)
{
	List	   *qual = plan->qual;
	List	   *targetlist = plan->targetlist;
	List	   *initplans = plan->initPlan;
	Join	   *join = inner_join(plan);
	List	   *joinqual = join != NULL ? join->joinqual : NIL;
	bool		result;

	if (batch_count_side_effects(rw) == 0)
		return true;

	plan->qual = clauses;
	plan->targetlist = NIL;
	plan->initPlan = NIL;
	if (join != NULL)
		join->joinqual = NIL;
	result = batch_may_read_ahead(rw, plan, may_stop);
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

		var->varattno = batch_column_position(lists[1], (Node *) tle->expr);
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
 * leaves instead.
 *
 * plan is changed in place.  Returns it, or the topmost layer above it, which
 * takes its place in the tree.
 */
Plan *
batch_add_layers_above(BatchRewrite *rw, Plan *plan, const BatchDemand *demand)
{
	ExtractContext	context;
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
	nkept = first_with_call(rw, clauses, plan->targetlist);
	if (nkept == nclauses &&
		!batch_can_extract(rw, (Node *) plan->targetlist, plan->targetlist))
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
	/* with all of its clauses: those that move may be behind another layer */
	if (!may_read_ahead(rw, plan, IsA(plan, WindowAgg) ? plan->qual : clauses,
					   demand->may_stop && !exact))
		return plan;

	batch_extract_begin(&context, rw, plan->targetlist);
	for (int i = nkept + list_length(prefilter); i < nclauses; i++)
		batch_extract_clause(&context, list_nth(clauses, i));
	targetlist = extract_targetlist(&context, plan->targetlist);

	leaves = batch_leaves_above(&context, 0, targetlist, prefilter);

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
	plan->targetlist = batch_make_targetlist(leaves);

	top = batch_stack_layers(rw, &context, plan, leaves, targetlist, prefilter, plan,
						   demand);

	/* Params set here may be used by what moved up, and by what stayed */
	top->initPlan = plan->initPlan;
	plan->initPlan = NIL;
	return top;
}
