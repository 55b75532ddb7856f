/*-------------------------------------------------------------------------
 *
 * effects.c
 *	  What cannot be run ahead of its time: expressions and plans with side
 *	  effects, and expressions that may raise an error.
 *
 * A batch reads rows that a LIMIT or a cursor above might never ask for.
 * That must not be seen: neither as a nextval() too many or a lock too many,
 * nor as the error of a row that nobody wanted.
 *
 *-------------------------------------------------------------------------
 */
#include "ml_udf_batch.h"

#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/lsyscache.h"

static bool
effect_walker(Node *node, PlannedStmt *stmt)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan))
	{
		Plan	   *subplan = list_nth(stmt->subplans,
									   ((SubPlan *) node)->plan_id - 1);

		if (batch_plan_has_effects(stmt, subplan))
			return true;
	}
	return expression_tree_walker(node, effect_walker, stmt);
}

/* Contains a volatile function, in the expression or in its subplans? */
bool
batch_expr_is_volatile(PlannedStmt *stmt, Node *node)
{
	return contain_volatile_functions(node) || effect_walker(node, stmt);
}

static bool
list_has_effects(PlannedStmt *stmt, List *plans)
{
	ListCell   *lc;

	foreach(lc, plans)
	{
		if (batch_plan_has_effects(stmt, lfirst(lc)))
			return true;
	}
	return false;
}

/* The subplans that initPlan refers to */
static bool
initplans_have_effects(PlannedStmt *stmt, List *initplans)
{
	ListCell   *lc;

	foreach(lc, initplans)
	{
		SubPlan    *sub = lfirst_node(SubPlan, lc);

		if (batch_plan_has_effects(stmt, list_nth(stmt->subplans,
												  sub->plan_id - 1)))
			return true;
	}
	return false;
}

/*
 * Does running this plan further than asked for change anything that can be
 * seen?  A node type that is not known here counts as one that does.
 */
bool
batch_plan_has_effects(PlannedStmt *stmt, Plan *plan)
{
	if (plan == NULL)
		return false;
	check_stack_depth();

	if (batch_expr_is_volatile(stmt, (Node *) plan->targetlist) ||
		batch_expr_is_volatile(stmt, (Node *) plan->qual) ||
		initplans_have_effects(stmt, plan->initPlan))
		return true;

	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
		case T_NamedTuplestoreScan:
		case T_WorkTableScan:
		case T_Result:
		case T_ProjectSet:
		case T_Sort:
		case T_IncrementalSort:
		case T_Material:
		case T_Memoize:
		case T_Hash:
		case T_Group:
		case T_Agg:
		case T_WindowAgg:
		case T_Unique:
		case T_SetOp:
		case T_Limit:
		case T_Gather:
		case T_GatherMerge:
		case T_RecursiveUnion:
			break;
		case T_SampleScan:
			if (batch_expr_is_volatile(stmt,
									   (Node *) ((SampleScan *) plan)->tablesample))
				return true;
			break;
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			if (batch_expr_is_volatile(stmt, (Node *) ((Join *) plan)->joinqual))
				return true;
			break;
		case T_FunctionScan:
			if (batch_expr_is_volatile(stmt,
									   (Node *) ((FunctionScan *) plan)->functions))
				return true;
			break;
		case T_ValuesScan:
			if (batch_expr_is_volatile(stmt,
									   (Node *) ((ValuesScan *) plan)->values_lists))
				return true;
			break;
		case T_TableFuncScan:
			if (batch_expr_is_volatile(stmt,
									   (Node *) ((TableFuncScan *) plan)->tablefunc))
				return true;
			break;
		case T_CteScan:
			if (batch_plan_has_effects(stmt,
									   list_nth(stmt->subplans,
												((CteScan *) plan)->ctePlanId - 1)))
				return true;
			break;
		case T_SubqueryScan:
			return batch_plan_has_effects(stmt, ((SubqueryScan *) plan)->subplan);
		case T_Append:
			return list_has_effects(stmt, ((Append *) plan)->appendplans);
		case T_MergeAppend:
			return list_has_effects(stmt, ((MergeAppend *) plan)->mergeplans);
		case T_ForeignScan:
			/* Reading ahead from elsewhere is what foreign scans do anyway */
			return ((ForeignScan *) plan)->operation != CMD_SELECT;
		case T_CustomScan:
			if (!batch_is_layer(plan))
				return true;
			if (batch_expr_is_volatile(stmt,
									   (Node *) ((CustomScan *) plan)->custom_exprs))
				return true;
			break;
		default:
			/* LockRows and ModifyTable among them */
			return true;
	}

	/* BitmapHeapScan's children only read indexes */
	if (IsA(plan, BitmapHeapScan))
		return false;
	return batch_plan_has_effects(stmt, plan->lefttree) ||
		batch_plan_has_effects(stmt, plan->righttree);
}

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
