/*-------------------------------------------------------------------------
 *
 * extracted_call.c
 *	  A call that was extracted: what stands for it, and its stage.
 *
 * A call that uses the result of another one, in its arguments or guards,
 * belongs to a later stage; so does a call behind a filter.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

typedef struct StageSearch
{
	ExtractContext   *context;
	int			stage;
} StageSearch;

static bool
stage_walker(Node *node, StageSearch *search)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var) && ((Var *) node)->varno == BATCH_CALL_VAR)
	{
		ExtractedCall  *call = list_nth(search->context->calls,
									((Var *) node)->varattno - 1);

		search->stage = Max(search->stage, call->stage);
		return false;
	}
	return expression_tree_walker(node, stage_walker, search);
}

static Var *
make_call_var(ExtractContext *context, Node *expr, int position)
{
	return makeVar(BATCH_CALL_VAR, position, exprType(expr), exprTypmod(expr),
				   exprCollation(expr), 0);
}

/*
 * Note a call whose arguments have been extracted from already, to be made by
 * twinid or, if that is InvalidOid, by the function itself.  Returns the
 * BATCH_CALL_VAR that stands for its result.  An equal call is shared unless
 * its value may be missing here.  expr is kept, not copied.
 */
Node *
batch_add_call(ExtractContext *context, Node *expr, Oid twinid)
{
	ExtractedCall  *call;
	StageSearch search = {context, context->base};
	ListCell   *lc;
	int			position = 0;

	foreach(lc, context->calls)
	{
		call = lfirst(lc);
		position++;
		if ((call->guards == NIL || equal(call->guards, context->guards)) &&
			equal(call->expr, expr))
			return (Node *) make_call_var(context, expr, position);
	}

	call = palloc(sizeof(ExtractedCall));
	call->expr = expr;
	call->guards = context->guards;
	call->twinid = twinid;
	/* behind the last filter, and behind every result that it uses */
	(void) stage_walker(expr, &search);
	(void) stage_walker((Node *) context->guards, &search);
	call->stage = search.stage + 1;
	context->calls = lappend(context->calls, call);
	/* a Var's attribute number has 16 bits */
	if (list_length(context->calls) > PG_INT16_MAX)
		elog(ERROR, "too many batched calls in one plan node");
	return (Node *) make_call_var(context, expr, list_length(context->calls));
}

/*
 * A Var without what does not matter in a finished plan, so that equal calls
 * are equal().
 */
Var *
batch_canonical_var(Var *var)
{
	return makeVar(var->varno, var->varattno, var->vartype, var->vartypmod,
				   var->varcollid, 0);
}
