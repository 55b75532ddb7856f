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
#include "plan.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "catalog/pg_type.h"

/*
 * What follows is evaluated only where guard is true.  A guard that cannot be
 * evaluated on its own keeps calls where they are instead.
 */
void
batch_push_guard(ExtractContext *context, Node *guard)
{
	if (!batch_is_movable(context, guard) || batch_has_subplan(guard))
		context->blocked = true;
	else
		context->guards = lappend(list_copy(context->guards), guard);
}

/* arg IS TRUE, IS NOT FALSE, ...: never NULL */
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
batch_extract_bool(ExtractContext *context, BoolExpr *expr)
{
	BoolExpr   *result = makeNode(BoolExpr);
	List	   *guards = context->guards;
	bool		blocked = context->blocked;
	ListCell   *lc;

	*result = *expr;
	result->args = NIL;
	foreach(lc, expr->args)
	{
		Node	   *arg = batch_extract_expr(context, lfirst(lc));

		result->args = lappend(result->args, arg);
		if (expr->boolop != NOT_EXPR && lnext(expr->args, lc) != NULL)
			batch_push_guard(context,
							 batch_boolean_test(arg, expr->boolop == AND_EXPR ?
											   IS_NOT_FALSE : IS_NOT_TRUE));
	}
	context->guards = guards;
	context->blocked = blocked;
	return (Node *) result;
}

/* COALESCE: an argument is reached while all before it are NULL */
Node *
batch_extract_coalesce(ExtractContext *context, CoalesceExpr *expr)
{
	CoalesceExpr *result = makeNode(CoalesceExpr);
	List	   *guards = context->guards;
	bool		blocked = context->blocked;
	ListCell   *lc;

	*result = *expr;
	result->args = NIL;
	foreach(lc, expr->args)
	{
		Node	   *arg = batch_extract_expr(context, lfirst(lc));

		result->args = lappend(result->args, arg);
		if (lnext(expr->args, lc) != NULL)
			batch_push_guard(context, batch_null_test(arg, IS_NULL));
	}
	context->guards = guards;
	context->blocked = blocked;
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

/*
 * CASE: a condition is reached while none before it holds, a result where its
 * condition is the first that does.
 */
Node *
batch_extract_case(ExtractContext *context, CaseExpr *expr)
{
	CaseExpr   *result = makeNode(CaseExpr);
	List	   *guards = context->guards;
	bool		blocked = context->blocked;
	List	   *conditions = NIL;
	ListCell   *lc;

	*result = *expr;
	result->arg = (Expr *) batch_extract_expr(context, (Node *) expr->arg);
	result->args = NIL;
	foreach(lc, expr->args)
	{
		CaseWhen   *when = makeNode(CaseWhen);

		*when = *lfirst_node(CaseWhen, lc);
		when->expr = (Expr *) batch_extract_expr(context, (Node *) when->expr);
		conditions = lappend(list_copy(conditions), when->expr);

		context->guards = guards;
		context->blocked = blocked;
		batch_push_guard(context, make_case_guard(result->arg, conditions, true));
		when->result = (Expr *) batch_extract_expr(context, (Node *) when->result);
		result->args = lappend(result->args, when);

		context->guards = guards;
		context->blocked = blocked;
		batch_push_guard(context, make_case_guard(result->arg, conditions, false));
	}
	result->defresult = (Expr *) batch_extract_expr(context, (Node *) expr->defresult);
	context->guards = guards;
	context->blocked = blocked;
	return (Node *) result;
}
