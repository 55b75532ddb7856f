/*-------------------------------------------------------------------------
 *
 * cut.c
 *	  Taking the calls that can be batched out of expressions.
 *
 * Each call is replaced by a BATCH_CALL_VAR and noted with
 *
 * - its guards.  CASE, COALESCE, AND and OR do not evaluate all of their
 *	 parts; a call in such a part may only be made where that part would have
 *	 been reached.  The guards are expressions that say so.  They are never
 *	 NULL and, taken in order and stopping at the first that is false, they
 *	 evaluate nothing that the expression itself would not have evaluated.
 *
 * - its stage.  A call that uses the result of another one, in its arguments
 *	 or guards, belongs to a later stage; so does a call behind a filter.
 *
 * A call stays where it is, to be made row by row, when its arguments are
 * volatile or mean nothing elsewhere, when a guard could not be evaluated
 * twice, and inside every node whose evaluation order is not known here.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"

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
 * Begin to cut the expressions of a node with this target list.
 *
 * The outputs of a MULTIEXPR subplan (UPDATE ... SET (a, b) = (SELECT ...))
 * are Params that the subplan sets while the projection runs.  A layer below
 * that projection would read them before they are set.
 */
void
batch_cut_begin(BatchCut *cut, BatchRewrite *rw, List *targetlist)
{
	memset(cut, 0, sizeof(BatchCut));
	cut->rw = rw;
	(void) multiexpr_walker((Node *) targetlist, &cut->late_params);
}

typedef struct ParamSearch
{
	Bitmapset  *wanted;
} ParamSearch;

static bool
param_walker(Node *node, ParamSearch *search)
{
	if (node == NULL)
		return false;
	if (IsA(node, Param))
	{
		Param	   *param = (Param *) node;

		return param->paramkind == PARAM_EXEC &&
			bms_is_member(param->paramid, search->wanted);
	}
	return expression_tree_walker(node, param_walker, search);
}

static bool
uses_params(Node *node, Bitmapset *params)
{
	ParamSearch search = {params};

	return params != NULL && param_walker(node, &search);
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

/* Can the expression be evaluated once more, or earlier, with one meaning? */
static bool
is_movable(BatchCut *cut, Node *node)
{
	return !batch_has_unbound(node) &&
		!uses_params(node, cut->late_params) &&
		!batch_expr_is_volatile(cut->rw, node);
}

typedef struct StageSearch
{
	BatchCut   *cut;
	int			stage;
} StageSearch;

static bool
stage_walker(Node *node, StageSearch *search)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var) && ((Var *) node)->varno == BATCH_CALL_VAR)
	{
		BatchCall  *call = list_nth(search->cut->calls,
									((Var *) node)->varattno - 1);

		search->stage = Max(search->stage, call->stage);
		return false;
	}
	return expression_tree_walker(node, stage_walker, search);
}

static Var *
make_call_var(BatchCut *cut, Node *expr, int position)
{
	return makeVar(BATCH_CALL_VAR, position, exprType(expr), exprTypmod(expr),
				   exprCollation(expr), 0);
}

/*
 * Note a call whose arguments have been cut already; returns what stands for
 * its result.  An equal call is shared unless its value may be missing here.
 */
static Node *
add_call(BatchCut *cut, Node *expr, Oid twinid)
{
	BatchCall  *call;
	StageSearch search = {cut, cut->base};
	ListCell   *lc;
	int			position = 0;

	foreach(lc, cut->calls)
	{
		call = lfirst(lc);
		position++;
		if ((call->guards == NIL || equal(call->guards, cut->guards)) &&
			equal(call->expr, expr))
			return (Node *) make_call_var(cut, expr, position);
	}

	call = palloc(sizeof(BatchCall));
	call->expr = expr;
	call->guards = cut->guards;
	call->twinid = twinid;
	/* behind the last filter, and behind every result that it uses */
	(void) stage_walker(expr, &search);
	(void) stage_walker((Node *) cut->guards, &search);
	call->stage = search.stage + 1;
	cut->calls = lappend(cut->calls, call);
	/* a Var's attribute number has 16 bits */
	if (list_length(cut->calls) > PG_INT16_MAX)
		elog(ERROR, "too many batched calls in one plan node");
	return (Node *) make_call_var(cut, expr, list_length(cut->calls));
}

/*
 * What follows is evaluated only where guard is true.  A guard that cannot be
 * evaluated on its own blocks cutting instead.
 */
void
batch_push_guard(BatchCut *cut, Node *guard)
{
	if (!is_movable(cut, guard) || batch_has_subplan(guard))
		cut->blocked = true;
	else
		cut->guards = lappend(list_copy(cut->guards), guard);
}

static Node *
make_boolean_test(Node *arg, BoolTestType type)
{
	BooleanTest *test = makeNode(BooleanTest);

	test->arg = (Expr *) arg;
	test->booltesttype = type;
	test->location = -1;
	return (Node *) test;
}

static Node *
make_null_test(Node *arg)
{
	NullTest   *test = makeNode(NullTest);

	test->arg = (Expr *) arg;
	test->nulltesttype = IS_NULL;
	/* COALESCE looks at the datum, not at the columns of a row */
	test->argisrow = false;
	test->location = -1;
	return (Node *) test;
}

/*
 * A Var without what does not matter in a finished plan, so that equal calls
 * are equal().
 */
Var *
batch_plain_var(Var *var)
{
	return makeVar(var->varno, var->varattno, var->vartype, var->vartypmod,
				   var->varcollid, 0);
}

static List *
cut_list(BatchCut *cut, List *list)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, list)
		result = lappend(result, batch_cut_expr(cut, lfirst(lc)));
	return result;
}

/* AND and OR: an argument is reached while none before it has decided */
static Node *
cut_bool(BatchCut *cut, BoolExpr *expr)
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
							 make_boolean_test(arg, expr->boolop == AND_EXPR ?
											   IS_NOT_FALSE : IS_NOT_TRUE));
	}
	cut->guards = guards;
	cut->blocked = blocked;
	return (Node *) result;
}

static Node *
cut_coalesce(BatchCut *cut, CoalesceExpr *expr)
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
			batch_push_guard(cut, make_null_test(arg));
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
		return make_boolean_test(linitial(conditions),
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

static Node *
cut_case(BatchCut *cut, CaseExpr *expr)
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
 * The arguments of a subplan are evaluated whenever it is.  So is, for a
 * hashed one, what is looked up in the hash table; otherwise the test is made
 * per row of the subplan and stays as it is.  Params for the subplan's output
 * are set only in between.
 */
static Node *
cut_subplan(BatchCut *cut, SubPlan *expr)
{
	SubPlan    *result = makeNode(SubPlan);
	ListCell   *lc;

	*result = *expr;
	result->args = cut_list(cut, expr->args);
	if (expr->useHashTable)
	{
		Bitmapset  *late_params = bms_copy(cut->late_params);

		foreach(lc, expr->paramIds)
			cut->late_params = bms_add_member(cut->late_params, lfirst_int(lc));
		result->testexpr = batch_cut_expr(cut, expr->testexpr);
		cut->late_params = late_params;
	}
	return (Node *) result;
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
	result->args = cut_list(cut, expr->args);
	if (!cut->blocked && batch_find_twin((Node *) result, &twinid) &&
		is_movable(cut, (Node *) result->args) &&
		!srf_walker((Node *) result->args, NULL))
		return add_call(cut, (Node *) result, twinid);
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
	result->args = cut_list(cut, expr->args);
	if (IsA(expr, OpExpr) && !cut->blocked &&
		batch_find_twin((Node *) result, &twinid) &&
		is_movable(cut, (Node *) result->args) &&
		!srf_walker((Node *) result->args, NULL))
		return add_call(cut, (Node *) result, twinid);
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
		result->field = cut_list(cut, result->field); \
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
			return cut_bool(cut, (BoolExpr *) node);
		case T_CoalesceExpr:
			return cut_coalesce(cut, (CoalesceExpr *) node);
		case T_CaseExpr:
			return cut_case(cut, (CaseExpr *) node);
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
