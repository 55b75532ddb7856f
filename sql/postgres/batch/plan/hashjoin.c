/*-------------------------------------------------------------------------
 *
 * hashjoin.c
 *	  Hash joins: calls in their keys are made below them.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/lsyscache.h"

/*
 * Extract from hash keys.  A key behind the first is not evaluated for a row
 * where an earlier one is NULL, and a row with such a key matches nothing: so a
 * call in it is masked there.
 */
static List *
extract_hash_keys(ExtractContext *context, List *keys)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, keys)
	{
		Node	   *key = batch_extract_expr(context, lfirst(lc));

		result = lappend(result, key);
		if (lnext(keys, lc) != NULL)
			batch_push_guard(context, batch_null_test(key, IS_NOT_NULL));
	}
	context->guards = NIL;
	context->blocked = false;
	return result;
}

typedef struct KnownCalls
{
	ExtractContext   *context;
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
		return (Node *) batch_canonical_var((Var *) node);

	/* inner calls first: outer ones were noted over their results */
	node = expression_tree_mutator(node, known_calls_mutator, known);
	if (!IsA(node, FuncExpr) && !IsA(node, OpExpr))
		return node;

	foreach(lc, known->columns)
	{
		Var		   *column = lfirst(lc);
		ExtractedCall  *call;
		Node	   *expr;

		if (!IsA(column, Var) || column->varno != BATCH_CALL_VAR)
			continue;
		call = list_nth(known->context->calls, column->varattno - 1);
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
		tests = lappend(tests, batch_null_test(list_nth(keys, i), IS_NOT_NULL));
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
 * Compute the calls in the hash keys of one side, below the node that uses
 * them; returns whether there were any.  A key with a call becomes a column of
 * the layers.  The hash clauses compare the keys of both sides in the same
 * order; argument 0 of each is the outer side's.
 */
static bool
extract_keys_of_side(BatchRewrite *rw, KnownCalls *known, HashJoin *join,
					 Plan *user, List **keys, int argument,
					 const BatchDemand *demand)
{
	BatchDemand own_demand = *demand;
	List	   *new_keys;
	List	   *extra = NIL;
	List	   *clauses = copyObject(join->hashclauses);
	bool		strict = false;
	int			extra_column;

	if (!batch_has_candidate((Node *) *keys) ||
		!batch_may_read_ahead(rw, user->lefttree, demand->may_stop))
		return false;
	batch_extract_begin(known->context, rw, NIL);
	new_keys = extract_hash_keys(known->context, *keys);
	if (known->context->calls == NIL)
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
	user->lefttree = batch_add_layers_below(rw, known->context, user,
											user->lefttree, extra,
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
			var = (Var *) batch_resolve_calls(key, known->columns, OUTER_VAR);
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
 *
 * join is changed in place.  Returns it, or the topmost layer above it.
 */
Plan *
batch_rewrite_hashjoin(BatchRewrite *rw, HashJoin *join,
					   const BatchDemand *demand)
{
	Plan	   *plan = &join->join.plan;
	Hash	   *hash = castNode(Hash, plan->righttree);
	BatchDemand outer_demand = batch_demand_streaming(demand);
	BatchDemand inner_demand = batch_demand_all(demand);
	JoinType	jointype = join->join.jointype;
	ExtractContext	context;
	KnownCalls	known = {&context, NIL, 0};

	plan->lefttree = batch_rewrite_plan(rw, plan->lefttree, &outer_demand);
	hash->plan.lefttree = batch_rewrite_plan(rw, hash->plan.lefttree,
											 &inner_demand);

	known.varno = OUTER_VAR;
	if (extract_keys_of_side(rw, &known, join, plan, &join->hashkeys, 0,
					   &outer_demand))
		reuse_calls(&known, &join->join,
					jointype == JOIN_INNER || jointype == JOIN_LEFT ||
					jointype == JOIN_SEMI || jointype == JOIN_ANTI);

	/* seen from the join, the columns of the Hash node are the inner side's */
	known.varno = INNER_VAR;
	if (extract_keys_of_side(rw, &known, join, &hash->plan, &hash->hashkeys, 1,
					   &inner_demand))
	{
		batch_extend_targetlist(&hash->plan, known.columns);
		reuse_calls(&known, &join->join, jointype == JOIN_INNER);
	}
	return batch_add_layers_above(rw, plan, demand);
}
