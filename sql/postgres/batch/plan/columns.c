/*-------------------------------------------------------------------------
 *
 * columns.c
 *	  From expressions to columns: leaves, and their positions.
 *
 * While layers are built, an expression of a plan node is read as one over
 * "leaves": what the node itself must supply (Vars, aggregates, window functions,
 * set-returning functions) and the results of calls.  A List of leaves says what
 * the columns of a plan node are.
 *
 *-------------------------------------------------------------------------
 */
#include "plan.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

/* Is the node what a plan node itself supplies, or the result of a call? */
bool
batch_is_leaf(Node *node)
{
	switch (nodeTag(node))
	{
		case T_Var:
		case T_Aggref:
		case T_GroupingFunc:
		case T_WindowFunc:
			return true;
		case T_FuncExpr:
			return ((FuncExpr *) node)->funcretset;
		case T_OpExpr:
			return ((OpExpr *) node)->opretset;
		default:
			return false;
	}
}

/*
 * Position of a leaf in a list of columns, from 1; 0 if it is not there.
 *
 * In a finished plan, Vars with the same varno and varattno are the same
 * column, whatever else they record (the outer joins above them, say).
 */
AttrNumber
batch_column_position(List *columns, Node *leaf)
{
	ListCell   *lc;

	foreach(lc, columns)
	{
		Node	   *column = lfirst(lc);

		if (nodeTag(column) != nodeTag(leaf))
			continue;
		if (IsA(leaf, Var) ?
			(((Var *) leaf)->varattno == ((Var *) column)->varattno &&
			 ((Var *) leaf)->varno == ((Var *) column)->varno) :
			equal(column, leaf))
			return foreach_current_index(lc) + 1;
	}
	return 0;
}

static bool
leaves_walker(Node *node, List **leaves)
{
	if (node == NULL)
		return false;
	if (batch_is_leaf(node))
	{
		if (batch_column_position(*leaves, node) == 0)
			*leaves = lappend(*leaves, node);
		return false;
	}
	return expression_tree_walker(node, leaves_walker, leaves);
}

/* Add the leaves of an expression that are not in the list yet */
List *
batch_add_leaves(List *leaves, Node *node)
{
	(void) leaves_walker(node, &leaves);
	return leaves;
}

typedef struct ColumnMap
{
	List	   *columns;
	int			varno;
} ColumnMap;

static Node *
columns_mutator(Node *node, ColumnMap *map)
{
	if (node == NULL)
		return NULL;
	if (batch_is_leaf(node))
	{
		AttrNumber	position = batch_column_position(map->columns, node);

		if (position == 0)
			elog(ERROR, "ml_udf: expression uses a column that is not supplied");
		return (Node *) makeVar(map->varno, position, exprType(node),
								exprTypmod(node), exprCollation(node), 0);
	}
	return expression_tree_mutator(node, columns_mutator, map);
}

/*
 * Replace each leaf by a Var of varno for its position among the columns; a
 * copy.  elog(ERROR) if one is not among them.
 */
Node *
batch_to_columns(Node *node, List *columns, int varno)
{
	ColumnMap	map = {columns, varno};

	return columns_mutator(node, &map);
}

static Node *
results_mutator(Node *node, ColumnMap *map)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Var) && ((Var *) node)->varno == BATCH_CALL_VAR)
		return (Node *) makeVar(map->varno,
								batch_column_position(map->columns, node),
								exprType(node), exprTypmod(node),
								exprCollation(node), 0);
	return expression_tree_mutator(node, results_mutator, map);
}

/* Replace the results of calls, and nothing else, by Vars for their columns */
Node *
batch_resolve_calls(Node *node, List *columns, int varno)
{
	ColumnMap	map = {columns, varno};

	return results_mutator(node, &map);
}

/* A target list of bare expressions */
List *
batch_make_targetlist(List *exprs)
{
	List	   *targetlist = NIL;
	ListCell   *lc;

	foreach(lc, exprs)
		targetlist = lappend(targetlist,
							 makeTargetEntry(lfirst(lc),
											 list_length(targetlist) + 1,
											 NULL, false));
	return targetlist;
}

/* What a node returns that returns what its child does: Vars for its columns */
List *
batch_pass_through(Plan *child)
{
	List	   *columns = NIL;
	ListCell   *lc;

	foreach(lc, child->targetlist)
	{
		Node	   *expr = (Node *) lfirst_node(TargetEntry, lc)->expr;

		columns = lappend(columns,
						  makeVar(OUTER_VAR, foreach_current_index(lc) + 1,
								  exprType(expr), exprTypmod(expr),
								  exprCollation(expr), 0));
	}
	return columns;
}
