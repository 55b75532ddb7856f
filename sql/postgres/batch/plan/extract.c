/*-------------------------------------------------------------------------
 *
 * extract.c
 *	  Taking the calls that can be batched out of expressions.
 *
 * Each call is replaced by a BATCH_CALL_VAR and noted with its guards (guard.c)
 * and its stage (calls.c).
 *
 * A call stays where it is, to be made row by row, when its arguments are
 * volatile or mean nothing elsewhere, when a guard could not be evaluated twice,
 * and inside every node whose evaluation order is not known here.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

List *
batch_cut_list(BatchCut *cut, List *list)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, list)
		result = lappend(result, batch_cut_expr(cut, lfirst(lc)));
	return result;
}

/*
 * A row comparison stops at the first columns that differ, so only those of
 * the first pair are sure to be evaluated.
 */
static Node *
cut_row_compare(BatchCut *cut, RowCompareExpr *expr)
{
	RowCompareExpr *result = makeNode(RowCompareExpr);

	*result = *expr;
	result->largs = list_copy(expr->largs);
	result->rargs = list_copy(expr->rargs);
	linitial(result->largs) = batch_cut_expr(cut, linitial(expr->largs));
	linitial(result->rargs) = batch_cut_expr(cut, linitial(expr->rargs));
	return (Node *) result;
}

/*
 * A hashed subplan does not look at what it is to find when it has no rows.
 * Asked for NULL, it answers false then, and NULL otherwise: the guard of the
 * calls in what it is to find.  Returns NULL if the subplan cannot be run by
 * two expressions: a change of its Params would reach only one of them.
 */
static Node *
make_subplan_guard(BatchCut *cut, SubPlan *expr)
{
	Plan	   *plan = list_nth(cut->rw->stmt->subplans, expr->plan_id - 1);
	SubPlan    *guard;
	List	   *tests;
	ListCell   *lc;

	if (plan->extParam != NULL ||
		batch_expr_is_volatile(cut->rw, (Node *) expr))
		return NULL;

	guard = makeNode(SubPlan);
	*guard = *expr;
	guard->testexpr = copyObject(expr->testexpr);
	guard->unknownEqFalse = false;
	tests = IsA(guard->testexpr, OpExpr) ? list_make1(guard->testexpr) :
		castNode(BoolExpr, guard->testexpr)->args;
	foreach(lc, tests)
	{
		List	   *args = lfirst_node(OpExpr, lc)->args;
		Node	   *sought = linitial(args);

		linitial(args) = makeNullConst(exprType(sought), exprTypmod(sought),
									   exprCollation(sought));
	}
	return batch_null_test((Node *) guard, IS_NULL);
}

/*
 * The arguments of a subplan are evaluated whenever it is.  So is, for a
 * hashed one with rows, what is looked up in the hash table; otherwise the
 * test is made per row of the subplan and stays as it is.  Params for the
 * subplan's output are set only in between.
 */
static Node *
cut_subplan(BatchCut *cut, SubPlan *expr)
{
	SubPlan    *result = makeNode(SubPlan);
	Node	   *guard = NULL;
	ListCell   *lc;

	*result = *expr;
	result->args = batch_cut_list(cut, expr->args);
	if (expr->useHashTable && batch_has_candidate(expr->testexpr))
		guard = make_subplan_guard(cut, expr);
	if (guard != NULL)
	{
		Bitmapset  *late_params = bms_copy(cut->late_params);
		List	   *guards = cut->guards;

		foreach(lc, expr->paramIds)
			cut->late_params = bms_add_member(cut->late_params, lfirst_int(lc));
		cut->guards = lappend(list_copy(guards), guard);
		result->testexpr = batch_cut_expr(cut, expr->testexpr);
		cut->guards = guards;
		cut->late_params = late_params;
	}
	return (Node *) result;
}

static bool
srf_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr) && ((FuncExpr *) node)->funcretset)
		return true;
	if (IsA(node, OpExpr) && ((OpExpr *) node)->opretset)
		return true;
	return expression_tree_walker(node, srf_walker, context);
}

static Node *
cut_function(BatchCut *cut, FuncExpr *expr)
{
	FuncExpr   *result;
	Oid			twinid;

	/* A set-returning function is a column here; its input was cut below */
	if (expr->funcretset)
		return (Node *) expr;

	result = makeNode(FuncExpr);
	*result = *expr;
	result->args = batch_cut_list(cut, expr->args);
	if (!cut->blocked && batch_find_twin((Node *) result, &twinid) &&
		batch_is_movable(cut, (Node *) result->args) &&
		!srf_walker((Node *) result->args, NULL))
		return batch_add_call(cut, (Node *) result, twinid);
	return (Node *) result;
}

/* OpExpr and its two look-alikes, which are not calls that could be cut */
static Node *
cut_operator(BatchCut *cut, OpExpr *expr)
{
	OpExpr	   *result;
	Oid			twinid;

	if (expr->opretset)
		return (Node *) expr;

	result = (OpExpr *) newNode(sizeof(OpExpr), nodeTag(expr));
	*result = *expr;
	result->args = batch_cut_list(cut, expr->args);
	if (IsA(expr, OpExpr) && !cut->blocked &&
		batch_find_twin((Node *) result, &twinid) &&
		batch_is_movable(cut, (Node *) result->args) &&
		!srf_walker((Node *) result->args, NULL))
		return batch_add_call(cut, (Node *) result, twinid);
	return (Node *) result;
}

/* Copy a node of this type and cut its single argument */
#define CUT_ARG(type) \
	{ \
		type	   *result = makeNode(type); \
		\
		*result = *(type *) node; \
		result->arg = (Expr *) batch_cut_expr(cut, (Node *) result->arg); \
		return (Node *) result; \
	}

/* Copy a node of this type and cut its list of unconditional arguments */
#define CUT_LIST(type, field) \
	{ \
		type	   *result = makeNode(type); \
		\
		*result = *(type *) node; \
		result->field = batch_cut_list(cut, result->field); \
		return (Node *) result; \
	}

/*
 * Cut all calls out of an expression; returns what remains.  The input is not
 * changed, parts of it are shared by the result.
 */
Node *
batch_cut_expr(BatchCut *cut, Node *node)
{
	if (node == NULL)
		return NULL;
	check_stack_depth();

	switch (nodeTag(node))
	{
		case T_Var:
			return (Node *) batch_plain_var((Var *) node);
		case T_FuncExpr:
			return cut_function(cut, (FuncExpr *) node);
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			return cut_operator(cut, (OpExpr *) node);
		case T_BoolExpr:
			return batch_cut_bool(cut, (BoolExpr *) node);
		case T_CoalesceExpr:
			return batch_cut_coalesce(cut, (CoalesceExpr *) node);
		case T_CaseExpr:
			return batch_cut_case(cut, (CaseExpr *) node);
		case T_RowCompareExpr:
			return cut_row_compare(cut, (RowCompareExpr *) node);
		case T_SubPlan:
			return cut_subplan(cut, (SubPlan *) node);
		case T_ScalarArrayOpExpr:
			CUT_LIST(ScalarArrayOpExpr, args);
		case T_MinMaxExpr:
			CUT_LIST(MinMaxExpr, args);
		case T_RowExpr:
			CUT_LIST(RowExpr, args);
		case T_ArrayExpr:
			CUT_LIST(ArrayExpr, elements);
		case T_RelabelType:
			CUT_ARG(RelabelType);
		case T_CoerceViaIO:
			CUT_ARG(CoerceViaIO);
		case T_ArrayCoerceExpr:
			CUT_ARG(ArrayCoerceExpr);
		case T_ConvertRowtypeExpr:
			CUT_ARG(ConvertRowtypeExpr);
		case T_CollateExpr:
			CUT_ARG(CollateExpr);
		case T_CoerceToDomain:
			CUT_ARG(CoerceToDomain);
		case T_FieldSelect:
			CUT_ARG(FieldSelect);
		case T_NullTest:
			CUT_ARG(NullTest);
		case T_BooleanTest:
			CUT_ARG(BooleanTest);
		case T_SubscriptingRef:
			{
				/* subscripts are skipped when the container is NULL */
				SubscriptingRef *result = makeNode(SubscriptingRef);

				*result = *(SubscriptingRef *) node;
				result->refexpr = (Expr *) batch_cut_expr(cut, (Node *) result->refexpr);
				return (Node *) result;
			}
		default:
			return node;
	}
}

/*
 * Cut a clause of a filter and note it as one.  Clauses must come in their
 * order of evaluation; what is cut after this is computed behind the filter.
 */
void
batch_cut_clause(BatchCut *cut, Node *clause)
{
	int			ncalls = list_length(cut->calls);
	Node	   *rest = batch_cut_expr(cut, clause);
	int			stage = cut->base;

	for (int i = ncalls; i < list_length(cut->calls); i++)
		stage = Max(stage, ((BatchCall *) list_nth(cut->calls, i))->stage);

	Assert(stage > 0);
	while (list_length(cut->clauses) < stage)
		cut->clauses = lappend(cut->clauses, NIL);
	lfirst(list_nth_cell(cut->clauses, stage - 1)) =
		lappend(list_nth(cut->clauses, stage - 1), rest);
	cut->base = stage;
}

/* Is there a call that would be cut out of this expression, or target list? */
bool
batch_can_cut(BatchRewrite *rw, Node *node, List *targetlist)
{
	BatchCut	trial;
	ListCell   *lc;

	if (!batch_has_candidate(node))
		return false;
	batch_cut_begin(&trial, rw, targetlist);
	if (IsA(node, List))
	{
		foreach(lc, (List *) node)
			(void) batch_cut_expr(&trial,
								  (Node *) lfirst_node(TargetEntry, lc)->expr);
	}
	else
		(void) batch_cut_expr(&trial, node);
	return trial.calls != NIL;
}
