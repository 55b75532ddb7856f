/*-------------------------------------------------------------------------
 *
 * plan.h
 *	  What the files share that rewrite a plan.  In the order of the work:
 *
 *	  statement.c		one statement: its plan, its subplans, its dependencies
 *	  plan_tree.c		the walk over a plan: which node allows what
 *	  join.c, hashjoin.c, append.c	nodes that need more than the common treatment
 *	  demand.c			what the consumer of a node asks for
 *	  layers_above.c	a node's filter and target list, computed above it
 *	  layers_below.c	arguments of its aggregates and the like, below it
 *	  twin.c			which calls can be batched
 *	  extract.c			taking them out of expressions
 *	  guard.c			the conditions under which to make them
 *	  extracted_call.c	what stands for them, and the order to make them in
 *	  clauses.c, side_effects.c	what must stay where it is
 *	  columns.c			from expressions to columns
 *	  layer.c			building the CustomScans
 *
 *-------------------------------------------------------------------------
 */
#ifndef ML_UDF_BATCH_PLAN_H
#define ML_UDF_BATCH_PLAN_H

#include "ml_udf_batch.h"

/*
 * The result of a call that was extracted, while the layers are not built yet:
 * a Var of this varno whose varattno is the position of the call in
 * ExtractContext.calls (from 1).  None is left in a finished plan.
 */
#define BATCH_CALL_VAR (-101)

/*
 * What happens above a place of the plan.
 *
 * reads_all: the consumer reads every row before it shows anything, so a batch
 *		may be as large as memory allows from the start, and an error of any
 *		row is an error of the statement.
 * may_stop: some node above is made to stop early (LIMIT, EXISTS, semijoin,
 *		cursor), so rows read ahead may be rows that nobody asks for.
 * limit_count/offset: set while the number of rows asked for here is exactly
 *		that of a LIMIT above; limit_final: it never asks for more.
 * in_worker: below a Gather.
 * peeked: the first row may be fetched only to see whether there is any; and a
 *		row of NULLs is dropped.
 */
typedef struct BatchDemand
{
	bool		reads_all;
	bool		may_stop;
	bool		limit_final;
	bool		in_worker;
	bool		peeked;
	Node	   *limit_count;
	Node	   *limit_offset;
} BatchDemand;

/* One rewrite of one PlannedStmt */
typedef struct BatchRewrite
{
	PlannedStmt *stmt;
	int			last_node_id;	/* largest plan_node_id in use */
	int			nlayers;		/* layers added so far */
	List	   *twins;			/* OIDs of the twins used */
	bool		is_cursor;		/* DECLARE CURSOR and the like */
	bool		effects_known;	/* effects is set: see side_effects.c */
	int			effects;
	bool		has_security_quals; /* has row security or a security barrier */
} BatchRewrite;

/* A call that was extracted */
typedef struct ExtractedCall
{
	Node	   *expr;			/* the call; inner calls are BATCH_CALL_VARs */
	List	   *guards;			/* conditions under which its value is used */
	Oid			twinid;			/* InvalidOid: call the function itself */
	int			stage;			/* the layer that computes it, from 1 */
} ExtractedCall;

/*
 * The state of extracting calls from the expressions of one plan node.  Stages
 * are numbered in the order of execution; a stage computes its calls, then
 * applies its clauses as a filter.
 */
typedef struct ExtractContext
{
	BatchRewrite *rw;
	List	   *calls;			/* of ExtractedCall */
	List	   *clauses;		/* per stage, a List of clauses */
	int			base;			/* new calls go to stages above this one */
	List	   *guards;			/* conditions on the path to where we are */
	bool		blocked;		/* nothing can be extracted where we are */
	Bitmapset  *late_params;	/* PARAM_EXECs not set before the projection */
} ExtractContext;

/* plan_tree.c */
extern Plan *batch_rewrite_plan(BatchRewrite *rw, Plan *plan,
								const BatchDemand *demand);

/* join.c */
extern Plan *batch_rewrite_nestloop(BatchRewrite *rw, NestLoop *join,
									const BatchDemand *demand);
extern Plan *batch_rewrite_mergejoin(BatchRewrite *rw, MergeJoin *join,
									 const BatchDemand *demand);
extern Plan *batch_add_material(BatchRewrite *rw, Plan *plan);
extern void batch_extend_targetlist(Plan *plan, List *columns);

/* hashjoin.c */
extern Plan *batch_rewrite_hashjoin(BatchRewrite *rw, HashJoin *join,
									const BatchDemand *demand);

/* append.c */
extern Plan *batch_merge_append(BatchRewrite *rw, Append *append);

/* demand.c */
extern BatchDemand batch_demand_streaming(const BatchDemand *demand);
extern BatchDemand batch_demand_all(const BatchDemand *demand);
extern BatchDemand batch_demand_stoppable(const BatchDemand *demand);
extern BatchDemand batch_demand_limit(BatchRewrite *rw, Limit *limit,
									  const BatchDemand *demand);
extern BatchDemand batch_demand_worker(const BatchDemand *demand);

/* layers_above.c */
extern Plan *batch_add_layers_above(BatchRewrite *rw, Plan *plan,
									const BatchDemand *demand);

/* layers_below.c */
extern Plan *batch_add_layers_below(BatchRewrite *rw, ExtractContext *context,
									Plan *user, Plan *child, List *extra,
									List **columns, const BatchDemand *demand);
extern void batch_extract_arguments(BatchRewrite *rw, Plan *plan,
									const BatchDemand *child_demand);

/* twin.c */
extern bool batch_find_twin(Node *node, Oid *twinid);
extern bool batch_has_candidate(Node *node);

/* extract.c */
extern void batch_extract_begin(ExtractContext *context, BatchRewrite *rw,
								List *targetlist);
extern Node *batch_extract_expr(ExtractContext *context, Node *node);
extern List *batch_extract_list(ExtractContext *context, List *list);
extern void batch_extract_clause(ExtractContext *context, Node *clause);
extern bool batch_can_extract(BatchRewrite *rw, Node *node, List *targetlist);

/* guard.c */
extern void batch_push_guard(ExtractContext *context, Node *guard);
extern Node *batch_boolean_test(Node *arg, BoolTestType type);
extern Node *batch_null_test(Node *arg, NullTestType type);
extern Node *batch_extract_bool(ExtractContext *context, BoolExpr *expr);
extern Node *batch_extract_coalesce(ExtractContext *context,
									CoalesceExpr *expr);
extern Node *batch_extract_case(ExtractContext *context, CaseExpr *expr);

/* extracted_call.c */
extern Node *batch_add_call(ExtractContext *context, Node *expr, Oid twinid);
extern Var *batch_canonical_var(Var *var);

/* clauses.c */
extern bool batch_expr_may_fail(Node *node);
extern bool batch_has_subplan(Node *node);
extern bool batch_has_unbound(Node *node);
extern bool batch_is_movable(ExtractContext *context, Node *node);

/* side_effects.c */
extern bool batch_expr_is_volatile(BatchRewrite *rw, Node *node);
extern int	batch_count_side_effects(BatchRewrite *rw);
extern bool batch_may_read_ahead(BatchRewrite *rw, Plan *plan, bool may_stop);

/* columns.c */
extern bool batch_is_leaf(Node *node);
extern AttrNumber batch_column_position(List *columns, Node *leaf);
extern List *batch_add_leaves(List *leaves, Node *node);
extern Node *batch_to_columns(Node *node, List *columns, int varno);
extern Node *batch_resolve_calls(Node *node, List *columns, int varno);
extern List *batch_make_targetlist(List *exprs);
extern List *batch_pass_through(Plan *child);

/* layer.c */
extern List *batch_stage_results(ExtractContext *context, int stage);
extern int	batch_count_stages(ExtractContext *context);
extern List *batch_leaves_above(ExtractContext *context, int stage,
								List *targetlist, List *prefilter);
extern Plan *batch_stack_layers(BatchRewrite *rw, ExtractContext *context,
								Plan *child, List *columns, List *targetlist,
								List *prefilter, Plan *owner,
								const BatchDemand *demand);

#endif							/* ML_UDF_BATCH_PLAN_H */
