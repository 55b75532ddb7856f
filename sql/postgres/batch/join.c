/*-------------------------------------------------------------------------
 *
 * join.c
 *	  Joins: hash keys, filters below a parameterized nested loop, marks.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/lsyscache.h"

/* A Material over plan; init plans move up so that it stays their place */
Plan *
batch_add_material(BatchRewrite *rw, Plan *plan)
{
	Material   *material = makeNode(Material);
	Plan	   *node = &material->plan;
	ListCell   *lc;

	foreach(lc, plan->targetlist)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);
		Node	   *expr = (Node *) tle->expr;

		tle = flatCopyTargetEntry(tle);
		tle->expr = (Expr *) makeVar(OUTER_VAR, tle->resno, exprType(expr),
									 exprTypmod(expr), exprCollation(expr), 0);
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

static Node *
not_null_test(Node *arg)
{
	NullTest   *test = makeNode(NullTest);

	test->arg = (Expr *) arg;
	test->nulltesttype = IS_NOT_NULL;
	test->argisrow = false;
	test->location = -1;
	return (Node *) test;
}

/*
 * Cut hash keys.  A key behind the first is not evaluated for a row where an
 * earlier one is NULL, and a row with such a key matches nothing: so a call in
 * it is masked there.
 */
static List *
cut_hash_keys(BatchCut *cut, List *keys)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, keys)
	{
		Node	   *key = batch_cut_expr(cut, lfirst(lc));

		result = lappend(result, key);
		if (lnext(keys, lc) != NULL)
			batch_push_guard(cut, not_null_test(key));
	}
	cut->guards = NIL;
	cut->blocked = false;
	return result;
}

typedef struct KnownCalls
{
	BatchCut   *cut;
	List	   *columns;		/* of the child, with the results */
	int			varno;			/* how the expressions refer to that child */
} KnownCalls;

/* Replace calls that a layer below makes for every row by its columns */
static Node *
known_calls_mutator(Node *node, KnownCalls *known)
{
	ListCell   *lc;

	if (node == NULL)
		return NULL;
	if (IsA(node, Var))
		return (Node *) batch_plain_var((Var *) node);

	/* inner calls first: outer ones were noted over their results */
	node = expression_tree_mutator(node, known_calls_mutator, known);
	if (!IsA(node, FuncExpr) && !IsA(node, OpExpr))
		return node;

	foreach(lc, known->columns)
	{
		Var		   *column = lfirst(lc);
		BatchCall  *call;
		Node	   *expr;

		if (!IsA(column, Var) || column->varno != BATCH_CALL_VAR)
			continue;
		call = list_nth(known->cut->calls, column->varattno - 1);
		if (call->guards != NIL)
			continue;
		expr = batch_to_columns(call->expr, known->columns, known->varno);
		if (equal(expr, node))
			return (Node *) makeVar(known->varno, foreach_current_index(lc) + 1,
									exprType(expr), exprTypmod(expr),
									exprCollation(expr), 0);
	}
	return node;
}

/* Add the results at the end of a child's columns to a pass-through node */
static void
extend_targetlist(Plan *plan, List *columns)
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

static bool
results_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var) && ((Var *) node)->varno == BATCH_CALL_VAR)
		return true;
	return expression_tree_walker(node, results_walker, context);
}

/*
 * The value of a hash key where all keys before it are not NULL; elsewhere the
 * join would not have evaluated it.
 */
static Node *
guarded_key(List *keys, int position)
{
	Node	   *key = list_nth(keys, position);
	CaseExpr   *guarded = makeNode(CaseExpr);
	CaseWhen   *when = makeNode(CaseWhen);
	List	   *tests = NIL;

	if (position == 0)
		return key;
	for (int i = 0; i < position; i++)
		tests = lappend(tests, not_null_test(list_nth(keys, i)));
	when->expr = make_ands_explicit(tests);
	when->result = (Expr *) key;
	when->location = -1;
	guarded->casetype = exprType(key);
	guarded->casecollid = exprCollation(key);
	guarded->args = list_make1(when);
	guarded->defresult = (Expr *) makeNullConst(exprType(key), exprTypmod(key),
												exprCollation(key));
	guarded->location = -1;
	return (Node *) guarded;
}

/*
 * Cut one side's hash keys and feed them; true if anything was cut.  A key with
 * a call becomes a column of the layers.  The hash clauses compare the keys of
 * both sides in the same order; argument 0 of each is the outer side's.
 */
static bool
feed_hash_keys(BatchRewrite *rw, KnownCalls *known, HashJoin *join, Plan *user,
			   List **keys, int argument, const BatchDemand *demand)
{
	BatchDemand own_demand = *demand;
	List	   *new_keys;
	List	   *extra = NIL;
	List	   *clauses = copyObject(join->hashclauses);
	bool		strict = false;
	int			extra_column;

	if (!batch_has_candidate((Node *) *keys) ||
		!batch_may_run_ahead(rw, user->lefttree, demand->may_stop))
		return false;
	batch_cut_begin(known->cut, rw, NIL);
	new_keys = cut_hash_keys(known->cut, *keys);
	if (known->cut->calls == NIL)
		return false;

	for (int i = 0; i < list_length(new_keys); i++)
	{
		Node	   *key = list_nth(new_keys, i);

		if (!results_walker(key, NULL))
			continue;
		strict = strict || op_strict(list_nth_oid(join->hashoperators, i));
		/* a bare call is a column already, and was guarded itself */
		if (!IsA(key, Var))
			extra = lappend(extra, guarded_key(new_keys, i));
	}
	own_demand.peeked = argument == 0 && strict &&
		(join->join.jointype == JOIN_INNER || join->join.jointype == JOIN_SEMI);
	user->lefttree = batch_feed(rw, known->cut, user, user->lefttree, extra,
								&known->columns, &own_demand);

	extra_column = list_length(known->columns) - list_length(extra);
	for (int i = 0; i < list_length(new_keys); i++)
	{
		Node	   *key = list_nth(new_keys, i);
		OpExpr	   *clause = list_nth_node(OpExpr, clauses, i);
		Var		   *var;

		if (!results_walker(key, NULL))
			continue;
		if (IsA(key, Var))
			var = (Var *) batch_finish_calls(key, known->columns, OUTER_VAR);
		else
			var = makeVar(OUTER_VAR, ++extra_column, exprType(key),
						  exprTypmod(key), exprCollation(key), 0);
		lfirst(list_nth_cell(new_keys, i)) = var;
		var = copyObject(var);
		var->varno = known->varno;
		lfirst(list_nth_cell(clause->args, argument)) = var;
	}
	*keys = new_keys;
	join->hashclauses = clauses;
	return true;
}

/* Let the other expressions of the join use the calls, too */
static void
reuse_calls(KnownCalls *known, Join *join, bool in_output)
{
	join->joinqual = (List *) known_calls_mutator((Node *) join->joinqual, known);
	if (!in_output)
		return;
	join->plan.qual = (List *)
		known_calls_mutator((Node *) join->plan.qual, known);
	join->plan.targetlist = (List *)
		known_calls_mutator((Node *) join->plan.targetlist, known);
}

/*
 * Hash joins evaluate their keys for every row of either side.  Layers below
 * compute the calls in them; on the inner side the Hash node, which does not
 * project, passes the results on.  Other expressions of the join use them too,
 * unless the side may be null-extended by the join: a function need not
 * return NULL for NULL.
 */
Plan *
batch_rewrite_hashjoin(BatchRewrite *rw, HashJoin *join,
					   const BatchDemand *demand)
{
	Plan	   *plan = &join->join.plan;
	Hash	   *hash = castNode(Hash, plan->righttree);
	BatchDemand outer_demand = batch_demand_any(demand);
	BatchDemand inner_demand = batch_demand_all(demand);
	JoinType	jointype = join->join.jointype;
	BatchCut	cut;
	KnownCalls	known = {&cut, NIL, 0};

	plan->lefttree = batch_rewrite_plan(rw, plan->lefttree, &outer_demand);
	hash->plan.lefttree = batch_rewrite_plan(rw, hash->plan.lefttree,
											 &inner_demand);

	known.varno = OUTER_VAR;
	if (feed_hash_keys(rw, &known, join, plan, &join->hashkeys, 0,
					   &outer_demand))
		reuse_calls(&known, &join->join,
					jointype == JOIN_INNER || jointype == JOIN_LEFT ||
					jointype == JOIN_SEMI || jointype == JOIN_ANTI);

	/* seen from the join, the columns of the Hash node are the inner side's */
	known.varno = INNER_VAR;
	if (feed_hash_keys(rw, &known, join, &hash->plan, &hash->hashkeys, 1,
					   &inner_demand))
	{
		extend_targetlist(&hash->plan, known.columns);
		reuse_calls(&known, &join->join, jointype == JOIN_INNER);
	}
	return batch_project(rw, plan, demand);
}

/*
 * Merge joins mark and restore a position of their inner side, which a layer
 * cannot; they may also leave either side before its end.
 */
Plan *
batch_rewrite_mergejoin(BatchRewrite *rw, MergeJoin *join,
						const BatchDemand *demand)
{
	Plan	   *plan = &join->join.plan;
	BatchDemand some = batch_demand_some(demand);
	int			nlayers;

	plan->lefttree = batch_rewrite_plan(rw, plan->lefttree, &some);
	nlayers = rw->nlayers;
	plan->righttree = batch_rewrite_plan(rw, plan->righttree, &some);
	if (rw->nlayers > nlayers && !join->skip_mark_restore &&
		!IsA(plan->righttree, Material) && !IsA(plan->righttree, Sort))
		plan->righttree = batch_add_material(rw, plan->righttree);
	return batch_project(rw, plan, demand);
}

typedef struct HoistContext
{
	NestLoop   *join;
	List	   *columns;		/* leaves that the inner side returns, in order */
} HoistContext;

/* From the inner side's scan to the join: its columns, and its Params back */
static Node *
hoist_mutator(Node *node, HoistContext *context)
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
		elog(ERROR, "ml_udf: hoisted clause uses a column that is not supplied");
	}
	return expression_tree_mutator(node, hoist_mutator, context);
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
hoist_inner_filter(BatchRewrite *rw, NestLoop *join)
{
	Plan	   *plan = &join->join.plan;
	Plan	   *inner = plan->righttree;
	Memoize    *memoize = NULL;
	HoistContext context = {join, NIL};
	List	   *moved;
	int			first;
	ListCell   *lc;

	if (join->join.jointype != JOIN_INNER || join->nestParams == NIL ||
		rw->secured)
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
		if (batch_can_cut(rw, list_nth(inner->qual, first), NIL))
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
		extend_targetlist(&memoize->plan, context.columns);
		/* one row per key was what passed the filter */
		memoize->singlerow = false;
	}

	join->join.inner_unique = false;
	moved = (List *) hoist_mutator((Node *) moved, &context);

	/* the cheap conditions go first, unless the filter kept them from errors */
	if (batch_expr_may_fail((Node *) join->join.joinqual))
		join->join.joinqual = list_concat(moved, join->join.joinqual);
	else
		join->join.joinqual = list_concat_copy(join->join.joinqual, moved);
}

Plan *
batch_rewrite_nestloop(BatchRewrite *rw, NestLoop *join,
					   const BatchDemand *demand)
{
	Plan	   *plan = &join->join.plan;
	BatchDemand outer_demand = batch_demand_any(demand);
	BatchDemand inner_demand;

	hoist_inner_filter(rw, join);

	/* these leave the inner side at its first match */
	if (join->join.inner_unique || join->join.jointype == JOIN_SEMI ||
		join->join.jointype == JOIN_ANTI)
		inner_demand = batch_demand_some(demand);
	else
		inner_demand = batch_demand_any(demand);

	plan->lefttree = batch_rewrite_plan(rw, plan->lefttree, &outer_demand);
	plan->righttree = batch_rewrite_plan(rw, plan->righttree, &inner_demand);
	return batch_project(rw, plan, demand);
}
