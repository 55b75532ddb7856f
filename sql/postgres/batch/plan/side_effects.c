/*-------------------------------------------------------------------------
 *
 * side_effects.c
 *	  What cannot be run before its time: expressions and plans with side
 *	  effects.
 *
 * A batch reads rows that a LIMIT or a cursor above might never ask for, and
 * it reads them before the rows in front of them have gone their way.  That
 * must not be seen as a nextval() or a lock too many or too early.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "access/transam.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/lsyscache.h"

typedef struct EffectCount
{
	BatchRewrite *rw;
	Bitmapset  *subplans;		/* those counted already, by plan_id */
	int			count;
} EffectCount;

static void count_plan(EffectCount *effects, Plan *plan);

/* Volatile functions that neither change nor observe anything */
static bool
is_harmless(Oid funcid)
{
	static const char *const names[] = {
		"random", "random_normal", "gen_random_uuid", "uuidv4", "uuidv7",
		"clock_timestamp", "timeofday", "pg_sleep"
	};
	char	   *name;

	if (funcid >= FirstGenbkiObjectId)
		return false;
	name = get_func_name(funcid);
	for (int i = 0; name != NULL && i < lengthof(names); i++)
	{
		if (strcmp(name, names[i]) == 0)
			return true;
	}
	return false;
}

static bool
has_effect(Oid funcid, void *context)
{
	return func_volatile(funcid) == PROVOLATILE_VOLATILE && !is_harmless(funcid);
}

static bool
effect_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, NextValueExpr) ||
		check_functions_in_node(node, has_effect, NULL))
		return true;
	return expression_tree_walker(node, effect_walker, context);
}

static void
count_subplan(EffectCount *effects, int plan_id)
{
	if (bms_is_member(plan_id, effects->subplans))
		return;
	effects->subplans = bms_add_member(effects->subplans, plan_id);
	count_plan(effects, list_nth(effects->rw->stmt->subplans, plan_id - 1));
}

static bool
subplans_walker(Node *node, EffectCount *effects)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan))
		count_subplan(effects, ((SubPlan *) node)->plan_id);
	return expression_tree_walker(node, subplans_walker, effects);
}

/* Count an expression, or each one of a list, and the subplans in it */
static void
count_expr(EffectCount *effects, Node *node)
{
	ListCell   *lc;

	if (node == NULL)
		return;
	if (IsA(node, List))
	{
		foreach(lc, (List *) node)
			count_expr(effects, lfirst(lc));
		return;
	}
	if (effect_walker(node, NULL))
		effects->count++;
	(void) subplans_walker(node, effects);
}

static void
count_plans(EffectCount *effects, List *plans)
{
	ListCell   *lc;

	foreach(lc, plans)
		count_plan(effects, lfirst(lc));
}

/*
 * Count what shows in a plan when it is run further than asked for.  A node
 * type that is not known here counts as an effect.
 */
static void
count_plan(EffectCount *effects, Plan *plan)
{
	if (plan == NULL)
		return;
	check_stack_depth();

	count_expr(effects, (Node *) plan->targetlist);
	count_expr(effects, (Node *) plan->qual);
	count_expr(effects, (Node *) plan->initPlan);

	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
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
		case T_BitmapHeapScan:
			/* its children only read indexes */
			return;
		case T_SampleScan:
			count_expr(effects, (Node *) ((SampleScan *) plan)->tablesample);
			break;
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			count_expr(effects, (Node *) ((Join *) plan)->joinqual);
			break;
		case T_FunctionScan:
			count_expr(effects, (Node *) ((FunctionScan *) plan)->functions);
			break;
		case T_ValuesScan:
			count_expr(effects, (Node *) ((ValuesScan *) plan)->values_lists);
			break;
		case T_TableFuncScan:
			count_expr(effects, (Node *) ((TableFuncScan *) plan)->tablefunc);
			break;
		case T_CteScan:
			count_subplan(effects, ((CteScan *) plan)->ctePlanId);
			break;
		case T_SubqueryScan:
			count_plan(effects, ((SubqueryScan *) plan)->subplan);
			break;
		case T_Append:
			count_plans(effects, ((Append *) plan)->appendplans);
			break;
		case T_MergeAppend:
			count_plans(effects, ((MergeAppend *) plan)->mergeplans);
			break;
		case T_ForeignScan:
			/* reading ahead is what foreign scans do anyway */
			if (((ForeignScan *) plan)->operation != CMD_SELECT)
				effects->count++;
			return;
		case T_CustomScan:
			if (!batch_is_layer(plan))
				effects->count++;
			break;
		default:
			/* LockRows and ModifyTable among them */
			effects->count++;
			break;
	}
	count_plan(effects, plan->lefttree);
	count_plan(effects, plan->righttree);
}

/*
 * How many expressions and nodes of the whole statement have side effects?
 * Counted once, when its plan is still whole.
 */
int
batch_count_side_effects(BatchRewrite *rw)
{
	if (!rw->effects_known)
	{
		EffectCount effects = {rw, NULL, 0};

		count_plan(&effects, rw->stmt->planTree);
		for (int i = 1; i <= list_length(rw->stmt->subplans); i++)
			count_subplan(&effects, i);
		rw->effects = effects.count;
		rw->effects_known = true;
	}
	return rw->effects;
}

/*
 * May a layer over this plan read it ahead, before its rows are asked for?
 *
 * If the reader may stop early, only if that does not show at all.  If it
 * reads everything, effects may happen earlier than they would have, but not
 * in another order among themselves: all of them must be below the layer.
 */
bool
batch_may_read_ahead(BatchRewrite *rw, Plan *plan, bool may_stop)
{
	EffectCount below = {rw, NULL, 0};

	if (batch_count_side_effects(rw) == 0)
		return true;
	count_plan(&below, plan);
	return below.count == 0 || (!may_stop && below.count == batch_count_side_effects(rw));
}

/* Contains a volatile function, in the expression or in its subplans? */
bool
batch_expr_is_volatile(BatchRewrite *rw, Node *node)
{
	EffectCount effects = {rw, NULL, 0};

	(void) subplans_walker(node, &effects);
	return effects.count > 0 || contain_volatile_functions(node);
}
