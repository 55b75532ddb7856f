/*-------------------------------------------------------------------------
 *
 * extract.c
 *	  Taking the calls that can be batched out of expressions.
 *
 * Each call is replaced by a BATCH_CALL_VAR and noted with its guards (guard.c)
 * and its stage (extracted_call.c).
 *
 * A call stays where it is, to be made row by row, when its arguments are
 * volatile or mean nothing elsewhere, when a guard could not be evaluated twice,
 * and inside every node whose evaluation order is not known here.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

static bool
multiexpr_walker(Node *node, Bitmapset **params)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan) &&
		((SubPlan *) node)->subLinkType == MULTIEXPR_SUBLINK)
	{
		ListCell   *lc;

		foreach(lc, ((SubPlan *) node)->setParam)
			*params = bms_add_member(*params, lfirst_int(lc));
	}
	return expression_tree_walker(node, multiexpr_walker, params);
}

/*
 * Begin to extract calls from the expressions of a node with this target list.
 * *context is overwritten.
 *
 * The outputs of a MULTIEXPR subplan (UPDATE ... SET (a, b) = (SELECT ...))
 * are Params that the subplan sets while the projection runs.  A layer below
 * that projection would read them before they are set.
 */
void
batch_extract_begin(ExtractContext *context, BatchRewrite *rw, List *targetlist)
{
	memset(context, 0, sizeof(ExtractContext));
	context->rw = rw;
	(void) multiexpr_walker((Node *) targetlist, &context->late_params);
}

/* batch_extract_expr() of each; a new list */
List *
batch_extract_list(ExtractContext *context, List *list)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, list)
		result = lappend(result, batch_extract_expr(context, lfirst(lc)));
	return result;
}

/*
 * A row comparison stops at the first columns that differ, so only those of
 * the first pair are sure to be evaluated.
 */
static Node *
extract_row_compare(ExtractContext *context, RowCompareExpr *expr)
{
	RowCompareExpr *result = makeNode(RowCompareExpr);

	*result = *expr;
	result->largs = list_copy(expr->largs);
	result->rargs = list_copy(expr->rargs);
	linitial(result->largs) = batch_extract_expr(context, linitial(expr->largs));
	linitial(result->rargs) = batch_extract_expr(context, linitial(expr->rargs));
	return (Node *) result;
}

/*
 * A hashed subplan does not look at what it is to find when it has no rows.
 * Asked for NULL, it answers false then, and NULL otherwise: the guard of the
 * calls in what it is to find.  Returns NULL if the subplan cannot be run by
 * two expressions: a change of its Params would reach only one of them.
 */
static Node *
make_subplan_guard(ExtractContext *context, SubPlan *expr)
{
	Plan	   *plan = list_nth(context->rw->stmt->subplans, expr->plan_id - 1);
	SubPlan    *guard;
	List	   *tests;
	ListCell   *lc;

	if (plan->extParam != NULL ||
		batch_expr_is_volatile(context->rw, (Node *) expr))
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
extract_subplan(ExtractContext *context, SubPlan *expr)
{
	SubPlan    *result = makeNode(SubPlan);
	Node	   *guard = NULL;
	ListCell   *lc;

	*result = *expr;
	result->args = batch_extract_list(context, expr->args);
	if (expr->useHashTable && batch_has_candidate(expr->testexpr))
		guard = make_subplan_guard(context, expr);
	if (guard != NULL)
	{
		Bitmapset  *late_params = bms_copy(context->late_params);
		List	   *guards = context->guards;

		foreach(lc, expr->paramIds)
			context->late_params = bms_add_member(context->late_params, lfirst_int(lc));
		context->guards = lappend(list_copy(guards), guard);
		result->testexpr = batch_extract_expr(context, expr->testexpr);
		context->guards = guards;
		context->late_params = late_params;
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
extract_function(ExtractContext *context, FuncExpr *expr)
{
	FuncExpr   *result;
	Oid			twinid;

	/* A set-returning function is a column here; its input was extracted below */
	if (expr->funcretset)
		return (Node *) expr;

	result = makeNode(FuncExpr);
	*result = *expr;
	result->args = batch_extract_list(context, expr->args);
	if (!context->blocked && batch_find_twin((Node *) result, &twinid) &&
		batch_is_movable(context, (Node *) result->args) &&
		!srf_walker((Node *) result->args, NULL))
		return batch_add_call(context, (Node *) result, twinid);
	return (Node *) result;
}

/* OpExpr and its two look-alikes, which are not calls that could be batched */
static Node *
extract_operator(ExtractContext *context, OpExpr *expr)
{
	OpExpr	   *result;
	Oid			twinid;

	if (expr->opretset)
		return (Node *) expr;

	result = (OpExpr *) newNode(sizeof(OpExpr), nodeTag(expr));
	*result = *expr;
	result->args = batch_extract_list(context, expr->args);
	if (IsA(expr, OpExpr) && !context->blocked &&
		batch_find_twin((Node *) result, &twinid) &&
		batch_is_movable(context, (Node *) result->args) &&
		!srf_walker((Node *) result->args, NULL))
		return batch_add_call(context, (Node *) result, twinid);
	return (Node *) result;
}

/* Copy a node of this type and extract from its single argument */
#define EXTRACT_ARG(type) \
	{ \
		type	   *result = makeNode(type); \
		\
		*result = *(type *) node; \
		result->arg = (Expr *) batch_extract_expr(context, (Node *) result->arg); \
		return (Node *) result; \
	}

/* Copy a node of this type and extract from its unconditional arguments */
#define EXTRACT_LIST(type, field) \
	{ \
		type	   *result = makeNode(type); \
		\
		*result = *(type *) node; \
		result->field = batch_extract_list(context, result->field); \
		return (Node *) result; \
	}

/*
 * Take all calls that can be batched out of an expression and note them in
 * context.  Returns what remains; the input is not changed, parts of it are
 * shared by the result.  NULL for NULL.
 */
Node *
batch_extract_expr(ExtractContext *context, Node *node)
{
	if (node == NULL)
		return NULL;
	check_stack_depth();

	switch (nodeTag(node))
	{
		case T_Var:
			return (Node *) batch_canonical_var((Var *) node);
		case T_FuncExpr:
			return extract_function(context, (FuncExpr *) node);
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			return extract_operator(context, (OpExpr *) node);
		case T_BoolExpr:
			return batch_extract_bool(context, (BoolExpr *) node);
		case T_CoalesceExpr:
			return batch_extract_coalesce(context, (CoalesceExpr *) node);
		case T_CaseExpr:
			return batch_extract_case(context, (CaseExpr *) node);
		case T_RowCompareExpr:
			return extract_row_compare(context, (RowCompareExpr *) node);
		case T_SubPlan:
			return extract_subplan(context, (SubPlan *) node);
		case T_ScalarArrayOpExpr:
			EXTRACT_LIST(ScalarArrayOpExpr, args);
		case T_MinMaxExpr:
			EXTRACT_LIST(MinMaxExpr, args);
		case T_RowExpr:
			EXTRACT_LIST(RowExpr, args);
		case T_ArrayExpr:
			EXTRACT_LIST(ArrayExpr, elements);
		case T_RelabelType:
			EXTRACT_ARG(RelabelType);
		case T_CoerceViaIO:
			EXTRACT_ARG(CoerceViaIO);
		case T_ArrayCoerceExpr:
			EXTRACT_ARG(ArrayCoerceExpr);
		case T_ConvertRowtypeExpr:
			EXTRACT_ARG(ConvertRowtypeExpr);
		case T_CollateExpr:
			EXTRACT_ARG(CollateExpr);
		case T_CoerceToDomain:
			EXTRACT_ARG(CoerceToDomain);
		case T_FieldSelect:
			EXTRACT_ARG(FieldSelect);
		case T_NullTest:
			EXTRACT_ARG(NullTest);
		case T_BooleanTest:
			EXTRACT_ARG(BooleanTest);
		case T_SubscriptingRef:
			{
				/* subscripts are skipped when the container is NULL */
				SubscriptingRef *result = makeNode(SubscriptingRef);

				*result = *(SubscriptingRef *) node;
				result->refexpr = (Expr *) batch_extract_expr(context, (Node *) result->refexpr);
				return (Node *) result;
			}
		default:
			return node;
	}
}

/*
 * Take the calls out of a clause of a filter and note the rest as one of its
 * stage.  Clauses must come in their order of evaluation; what is extracted
 * after this is computed behind the filter.  The clause must have a call, or
 * come behind one that has.
 */
void
batch_extract_clause(ExtractContext *context, Node *clause)
{
	int			ncalls = list_length(context->calls);
	Node	   *rest = batch_extract_expr(context, clause);
	int			stage = context->base;

	for (int i = ncalls; i < list_length(context->calls); i++)
		stage = Max(stage, ((ExtractedCall *) list_nth(context->calls, i))->stage);

	Assert(stage > 0);
	while (list_length(context->clauses) < stage)
		context->clauses = lappend(context->clauses, NIL);
	lfirst(list_nth_cell(context->clauses, stage - 1)) =
		lappend(list_nth(context->clauses, stage - 1), rest);
	context->base = stage;
}

/*
 * Is there a call that would be taken out of this expression, or out of this
 * target list?  targetlist is that of the node that it belongs to.
 */
bool
batch_can_extract(BatchRewrite *rw, Node *node, List *targetlist)
{
	ExtractContext	trial;
	ListCell   *lc;

	if (!batch_has_candidate(node))
		return false;
	batch_extract_begin(&trial, rw, targetlist);
	if (IsA(node, List))
	{
		foreach(lc, (List *) node)
			(void) batch_extract_expr(&trial,
								  (Node *) lfirst_node(TargetEntry, lc)->expr);
	}
	else
		(void) batch_extract_expr(&trial, node);
	return trial.calls != NIL;
}
