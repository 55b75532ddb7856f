/*-------------------------------------------------------------------------
 *
 * calls.c
 *	  Noting calls that are cut out: which may be, in which layer, once or twice.
 *
 * A call that uses the result of another one, in its arguments or guards,
 * belongs to a later stage; so does a call behind a filter.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

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

/* Can the expression be evaluated once more, or earlier, with one meaning? */
bool
batch_is_movable(BatchCut *cut, Node *node)
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
Node *
batch_add_call(BatchCut *cut, Node *expr, Oid twinid)
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
 * A Var without what does not matter in a finished plan, so that equal calls
 * are equal().
 */
Var *
batch_plain_var(Var *var)
{
	return makeVar(var->varno, var->varattno, var->vartype, var->vartypmod,
				   var->varcollid, 0);
}
