/*-------------------------------------------------------------------------
 *
 * ml_udf_batch.h
 *	  Batches for scalar functions: what the parts of the module share.
 *
 * A scalar function f(T) -> R with a declared twin f_batch(T[]) -> R[] is
 * called once per row by the executor.  This module rewrites a finished plan
 * so that "layers" (CustomScan nodes) gather rows, call the twin once for many
 * of them, and hand the rows on with the results as extra columns.
 *
 *	  ml_udf_batch.c	settings, the planner hook
 *
 * plan/: what happens when a statement is planned
 *
 *	  statement.c		rewriting a statement
 *	  plan_tree.c		the walk over its plan: which node allows what
 *	  demand.c			what a node's consumer will ask for
 *	  twin.c			which calls have a twin
 *	  extract.c			taking calls out of expressions
 *	  guard.c, calls.c	under which conditions, and in which order, to make them
 *	  side_effects.c, clauses.c	what must not be run early
 *	  columns.c			from expressions to columns
 *	  layer.c			building layers
 *	  project.c, arguments.c	layers over a plan node, and below it
 *	  join.c, hashjoin.c, append.c	nodes that need more than the common treatment
 *
 * exec/: what happens when it runs; the files are listed in exec/exec.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ML_UDF_BATCH_H
#define ML_UDF_BATCH_H

#include "postgres.h"

#include "nodes/extensible.h"
#include "nodes/plannodes.h"

/* How EXPLAIN and plan serialization call the node */
#define BATCH_NODE_NAME "MlUdfBatch"

/* settings, ml_udf_batch.c */
extern bool batch_enabled;
extern int	gather_rows;
extern bool batch_everything;
extern bool batch_overlap;

/* What a twin that can answer later is asked to do: see overlap.c */
#define BATCH_ASK_NOW		0	/* answer */
#define BATCH_ASK_BEGIN		1	/* begin to, and return NULL meanwhile */
#define BATCH_ASK_FORGET	2	/* forget what was begun and not answered */

/* What the twin that runs just now is asked to do */
extern __attribute__((visibility("default"))) int ml_udf_batch_asked;

/*
 * The result of a call that was cut out of an expression, while the layers
 * are not built yet: a Var of this varno whose varattno is the position of
 * the call in BatchCut.calls (from 1).  None is left in a finished plan.
 */
#define BATCH_CALL_VAR (-101)

/* twin.c */
extern void batch_find_init(void);
extern bool batch_find_twin(Node *node, Oid *twinid);
extern bool batch_has_candidate(Node *node);
extern Oid	batch_call_function(Node *call);
extern List *batch_call_args(Node *call);
extern Oid	batch_call_collation(Node *call);

/* How the elements of a twin's array carry values of the function's type */
typedef enum BatchForm
{
	BATCH_FORM_NONE,			/* they cannot */
	BATCH_FORM_PLAIN,			/* as they are */
	BATCH_FORM_COMPOSITE,		/* in a composite type's only column */
	BATCH_FORM_BINARY			/* as bytea in the type's binary format */
} BatchForm;

extern BatchForm batch_array_form(Oid arraytype, Oid valuetype);

/*
 * What happens above a place of the plan.
 *
 * reads_all: the consumer reads every row before it shows anything, so a batch
 *		may be as large as memory allows from the start, and an error of any
 *		row is an error of the statement.
 * may_stop: some node above is made to stop early (LIMIT, EXISTS, semijoin,
 *		cursor), so rows gathered ahead may be rows that nobody asks for.
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
	bool		effects_known;	/* see side_effects.c */
	int			effects;
	bool		secured;		/* has row security or a security barrier */
} BatchRewrite;

/* A call that was cut out */
typedef struct BatchCall
{
	Node	   *expr;			/* the call; inner calls are BATCH_CALL_VARs */
	List	   *guards;			/* conditions under which its value is used */
	Oid			twinid;			/* InvalidOid: call the function itself */
	int			stage;			/* the layer that computes it, from 1 */
} BatchCall;

/*
 * The state of cutting the expressions of one plan node.  Stages are numbered
 * in the order of execution; a stage computes its calls, then applies its
 * clauses as a filter.
 */
typedef struct BatchCut
{
	BatchRewrite *rw;
	List	   *calls;			/* of BatchCall */
	List	   *clauses;		/* per stage, a List of clauses */
	int			base;			/* new calls go to stages above this one */
	List	   *guards;			/* conditions on the path to where we are */
	bool		blocked;		/* nothing can be cut where we are */
	Bitmapset  *late_params;	/* PARAM_EXECs not set before the projection */
} BatchCut;

/* extract.c */
extern Node *batch_cut_expr(BatchCut *cut, Node *node);
extern List *batch_cut_list(BatchCut *cut, List *list);
extern void batch_cut_clause(BatchCut *cut, Node *clause);
extern bool batch_can_cut(BatchRewrite *rw, Node *node, List *targetlist);

/* guard.c */
extern void batch_push_guard(BatchCut *cut, Node *guard);
extern Node *batch_boolean_test(Node *arg, BoolTestType type);
extern Node *batch_null_test(Node *arg, NullTestType type);
extern Node *batch_cut_bool(BatchCut *cut, BoolExpr *expr);
extern Node *batch_cut_coalesce(BatchCut *cut, CoalesceExpr *expr);
extern Node *batch_cut_case(BatchCut *cut, CaseExpr *expr);

/* calls.c */
extern void batch_cut_begin(BatchCut *cut, BatchRewrite *rw, List *targetlist);
extern bool batch_is_movable(BatchCut *cut, Node *node);
extern Node *batch_add_call(BatchCut *cut, Node *expr, Oid twinid);
extern Var *batch_plain_var(Var *var);

/* side_effects.c */
extern bool batch_expr_is_volatile(BatchRewrite *rw, Node *node);
extern int	batch_total_effects(BatchRewrite *rw);
extern bool batch_may_run_ahead(BatchRewrite *rw, Plan *plan, bool may_stop);

/* clauses.c */
extern bool batch_expr_may_fail(Node *node);
extern bool batch_has_subplan(Node *node);
extern bool batch_has_unbound(Node *node);

/* columns.c */
extern bool batch_is_leaf(Node *node);
extern AttrNumber batch_column_position(List *columns, Node *leaf);
extern List *batch_add_leaves(List *leaves, Node *node);
extern Node *batch_to_columns(Node *node, List *columns, int varno);
extern Node *batch_finish_calls(Node *node, List *columns, int varno);
extern List *batch_make_targetlist(List *exprs);
extern List *batch_pass_through(Plan *child);

/*
 * What a layer computes, as stored in its CustomScan.  Expressions refer to
 * the child's columns by OUTER_VAR.
 */
typedef struct BatchLayer
{
	List	   *calls;			/* the calls */
	List	   *guards;			/* per call: condition to send it, or NULL */
	List	   *prefilter;		/* clauses a row must pass to be gathered */
	Node	   *limit_count;	/* see BatchDemand */
	Node	   *limit_offset;
	List	   *twins;			/* per call: OID of the twin */
	List	   *kept;			/* child columns needed above the calls */
	int			flags;
} BatchLayer;

#define BATCH_READS_ALL		0x01	/* see BatchDemand */
#define BATCH_LIMIT_FINAL	0x02
#define BATCH_INPUT_FALLIBLE	0x04	/* prefilter, guards, arguments may raise */
#define BATCH_QUAL_FALLIBLE 0x08	/* the node's own qual may raise */
#define BATCH_CURRENT_OF	0x10	/* of a cursor: keep row identities for WHERE
									 * CURRENT OF, and do not run ahead */
#define BATCH_PEEKED		0x20	/* the first row may be asked for for nothing */
#define BATCH_PHANTOM		0x40	/* a first row of NULLs will be dropped */

/* layer.c */
extern bool batch_is_layer(Plan *plan);
extern void batch_layer_unpack(CustomScan *cscan, BatchLayer *layer);
extern List *batch_stage_results(BatchCut *cut, int stage);
extern int	batch_count_stages(BatchCut *cut);
extern List *batch_leaves_above(BatchCut *cut, int stage, List *targetlist,
								List *prefilter);
extern Plan *batch_add_layers(BatchRewrite *rw, BatchCut *cut, Plan *child,
							  List *columns, List *targetlist, List *prefilter,
							  Plan *owner, const BatchDemand *demand);

/* project.c */
extern Plan *batch_project(BatchRewrite *rw, Plan *plan,
						   const BatchDemand *demand);

/* arguments.c */
extern Plan *batch_feed(BatchRewrite *rw, BatchCut *cut, Plan *user,
						Plan *child, List *extra, List **columns,
						const BatchDemand *demand);
extern void batch_feed_inputs(BatchRewrite *rw, Plan *plan,
							  const BatchDemand *child_demand);

/* demand.c */
extern BatchDemand batch_demand_any(const BatchDemand *demand);
extern BatchDemand batch_demand_all(const BatchDemand *demand);
extern BatchDemand batch_demand_some(const BatchDemand *demand);
extern BatchDemand batch_demand_limit(BatchRewrite *rw, Limit *limit,
									  const BatchDemand *demand);
extern BatchDemand batch_demand_worker(const BatchDemand *demand);

/* statement.c */
extern void batch_rewrite_stmt(PlannedStmt *stmt, int cursor_options);

/* plan_tree.c */
extern Plan *batch_rewrite_plan(BatchRewrite *rw, Plan *plan,
								const BatchDemand *demand);

/* hashjoin.c */
extern Plan *batch_rewrite_hashjoin(BatchRewrite *rw, HashJoin *join,
									const BatchDemand *demand);

/* join.c */
extern Plan *batch_rewrite_nestloop(BatchRewrite *rw, NestLoop *join,
									const BatchDemand *demand);
extern Plan *batch_rewrite_mergejoin(BatchRewrite *rw, MergeJoin *join,
									 const BatchDemand *demand);
extern Plan *batch_add_material(BatchRewrite *rw, Plan *plan);
extern void batch_extend_targetlist(Plan *plan, List *columns);

/* append.c */
extern Plan *batch_merge_append(BatchRewrite *rw, Append *append);

/* node.c */
extern const CustomScanMethods batch_scan_methods;

#endif							/* ML_UDF_BATCH_H */
