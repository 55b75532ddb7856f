/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  Conditional expressions: when is which part of them evaluated?
 *
 * CASE, COALESCE, AND and OR do not evaluate all of their parts.  A call in such
 * a part may only be made where that part would have been reached; its guards
 * are expressions that say so.  They are never NULL and, taken in order and
 * stopping at the first that is false, they evaluate nothing that the expression
 * itself would not have evaluated.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "catalog/pg_type.h"

/*
 * What follows is evaluated only where guard is true.  A guard that cannot be
 * evaluated on its own blocks cutting instead.
 */
void
batch_push_guard(BatchCut *cut, Node *guard)
{
	if (!batch_is_movable(cut, guard) || batch_has_subplan(guard))
		cut->blocked = true;
	else
		cut->guards = lappend(list_copy(cut->guards), guard);
}

Node *
batch_boolean_test(Node *arg, BoolTestType type)
{
	BooleanTest *test = makeNode(BooleanTest);

	test->arg = (Expr *) arg;
	test->booltesttype = type;
	test->location = -1;
	return (Node *) test;
}

/* A test of the datum: COALESCE and hash joins do not look into a row */
Node *
batch_null_test(Node *arg, NullTestType type)
{
	NullTest   *test = makeNode(NullTest);

	test->arg = (Expr *) arg;
	test->nulltesttype = type;
	test->argisrow = false;
	test->location = -1;
	return (Node *) test;
}

/* AND and OR: an argument is reached while none before it has decided */
Node *
batch_cut_bool(BatchCut *cut, BoolExpr *expr)
{
	BoolExpr   *result = makeNode(BoolExpr);
	List	   *guards = cut->guards;
	bool		blocked = cut->blocked;
	ListCell   *lc;

	*result = *expr;
	result->args = NIL;
	foreach(lc, expr->args)
	{
		Node	   *arg = batch_cut_expr(cut, lfirst(lc));

		result->args = lappend(result->args, arg);
		if (expr->boolop != NOT_EXPR && lnext(expr->args, lc) != NULL)
			batch_push_guard(cut,
							 batch_boolean_test(arg, expr->boolop == AND_EXPR ?
											   IS_NOT_FALSE : IS_NOT_TRUE));
	}
	cut->guards = guards;
	cut->blocked = blocked;
	return (Node *) result;
}

Node *
batch_cut_coalesce(BatchCut *cut, CoalesceExpr *expr)
{
	CoalesceExpr *result = makeNode(CoalesceExpr);
	List	   *guards = cut->guards;
	bool		blocked = cut->blocked;
	ListCell   *lc;

	*result = *expr;
	result->args = NIL;
	foreach(lc, expr->args)
	{
		Node	   *arg = batch_cut_expr(cut, lfirst(lc));

		result->args = lappend(result->args, arg);
		if (lnext(expr->args, lc) != NULL)
			batch_push_guard(cut, batch_null_test(arg, IS_NULL));
	}
	cut->guards = guards;
	cut->blocked = blocked;
	return (Node *) result;
}

/*
 * The condition that a CASE over arg gets past all of the conditions, or, if
 * chosen, that it takes the last of them.  A CASE again: it tests in the same
 * order and stops at the same place.
 */
static Node *
make_case_guard(Expr *arg, List *conditions, bool chosen)
{
	CaseExpr   *guard;
	ListCell   *lc;

	if (arg == NULL && list_length(conditions) == 1)
		return batch_boolean_test(linitial(conditions),
								 chosen ? IS_TRUE : IS_NOT_TRUE);

	guard = makeNode(CaseExpr);
	guard->casetype = BOOLOID;
	guard->arg = arg;
	guard->location = -1;
	foreach(lc, conditions)
	{
		CaseWhen   *when = makeNode(CaseWhen);
		bool		last = (lnext(conditions, lc) == NULL);

		when->expr = lfirst(lc);
		when->result = (Expr *) makeBoolConst(last && chosen, false);
		when->location = -1;
		guard->args = lappend(guard->args, when);
	}
	guard->defresult = (Expr *) makeBoolConst(!chosen, false);
	return (Node *) guard;
}

Node *
batch_cut_case(BatchCut *cut, CaseExpr *expr)
{
	CaseExpr   *result = makeNode(CaseExpr);
	List	   *guards = cut->guards;
	bool		blocked = cut->blocked;
	List	   *conditions = NIL;
	ListCell   *lc;

	*result = *expr;
	result->arg = (Expr *) batch_cut_expr(cut, (Node *) expr->arg);
	result->args = NIL;
	foreach(lc, expr->args)
	{
		CaseWhen   *when = makeNode(CaseWhen);

		*when = *lfirst_node(CaseWhen, lc);
		when->expr = (Expr *) batch_cut_expr(cut, (Node *) when->expr);
		conditions = lappend(list_copy(conditions), when->expr);

		cut->guards = guards;
		cut->blocked = blocked;
		batch_push_guard(cut, make_case_guard(result->arg, conditions, true));
		when->result = (Expr *) batch_cut_expr(cut, (Node *) when->result);
		result->args = lappend(result->args, when);

		cut->guards = guards;
		cut->blocked = blocked;
		batch_push_guard(cut, make_case_guard(result->arg, conditions, false));
	}
	result->defresult = (Expr *) batch_cut_expr(cut, (Node *) expr->defresult);
	cut->guards = guards;
	cut->blocked = blocked;
	return (Node *) result;
}
