/*-------------------------------------------------------------------------
 *
 * clauses.c
 *	  What can be said of an expression: may it fail, may it move?
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/nodeFuncs.h"
#include "utils/lsyscache.h"

static bool
not_leakproof(Oid funcid, void *context)
{
	return !get_func_leakproof(funcid);
}

static bool
may_fail_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_List:
		case T_TargetEntry:
		case T_Var:
		case T_Const:
		case T_Param:
		case T_CaseTestExpr:
		case T_BoolExpr:
		case T_NullTest:
		case T_BooleanTest:
		case T_RelabelType:
		case T_CollateExpr:
		case T_CaseExpr:
		case T_CaseWhen:
		case T_CoalesceExpr:
		case T_RowExpr:
		case T_Aggref:
		case T_WindowFunc:
		case T_GroupingFunc:
			break;
		case T_FuncExpr:
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
		case T_ScalarArrayOpExpr:
			if (check_functions_in_node(node, not_leakproof, NULL))
				return true;
			break;
		default:
			return true;
	}
	/* Aggregates and their like are plain columns here */
	if (IsA(node, Aggref) || IsA(node, WindowFunc) || IsA(node, GroupingFunc))
		return false;
	return expression_tree_walker(node, may_fail_walker, context);
}

/*
 * May evaluating the expression raise an error?  PostgreSQL knows of no such
 * property; a leakproof function comes closest, since an error would leak.
 */
bool
batch_expr_may_fail(Node *node)
{
	return may_fail_walker(node, NULL);
}

static bool
subplan_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan))
		return true;
	return expression_tree_walker(node, subplan_walker, context);
}

/* Does the expression run a subplan? */
bool
batch_has_subplan(Node *node)
{
	return subplan_walker(node, NULL);
}

static bool
unbound_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, CaseTestExpr) || IsA(node, CoerceToDomainValue))
		return true;
	/* These two give the CaseTestExprs of some of their parts a value */
	if (IsA(node, CaseExpr) && ((CaseExpr *) node)->arg != NULL)
	{
		CaseExpr   *expr = (CaseExpr *) node;
		ListCell   *lc;

		foreach(lc, expr->args)
		{
			if (unbound_walker((Node *) lfirst_node(CaseWhen, lc)->result,
							   context))
				return true;
		}
		return unbound_walker((Node *) expr->arg, context) ||
			unbound_walker((Node *) expr->defresult, context);
	}
	if (IsA(node, ArrayCoerceExpr))
		return unbound_walker((Node *) ((ArrayCoerceExpr *) node)->arg, context);
	return expression_tree_walker(node, unbound_walker, context);
}

/*
 * Does the expression contain a placeholder whose value comes from the
 * expression around it?  Then it means nothing anywhere else.
 */
bool
batch_has_unbound(Node *node)
{
	return unbound_walker(node, NULL);
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

/*
 * Can the expression be evaluated once more, or in a layer below, and mean the
 * same?
 */
bool
batch_is_movable(ExtractContext *context, Node *node)
{
	return !batch_has_unbound(node) &&
		!uses_params(node, context->late_params) &&
		!batch_expr_is_volatile(context->rw, node);
}
