/*-------------------------------------------------------------------------
 *
 * ml_udf_batch.h
 *	  Batches for scalar functions: what planning and execution share.
 *
 * A scalar function f(T) -> R with a declared twin f_batch(T[]) -> R[] is
 * called once per row by the executor.  This module rewrites a finished plan
 * so that "layers" (CustomScan nodes) gather rows, call the twin once for many
 * of them, and hand the rows on with the results as extra columns.
 *
 *	  ml_udf_batch.c	settings, the planner hook
 *	  plan/				what happens when a statement is planned: plan/plan.h
 *	  exec/				what happens when a layer runs: exec/exec.h
 *	  note/				which rows a watch has to look at: note/note.h
 *	  compat.h			where PostgreSQL's versions differ
 *
 * What the two folders know of each other is in this file.
 *
 * Memory, here and in both folders: what a function returns is allocated in
 * CurrentMemoryContext unless its comment names another, and nobody frees it;
 * it goes with the planner's context or the executor's.  Errors: every function
 * may raise those of the catalog lookups and allocations that it does; those
 * that it raises itself are in its comment.  elog(ERROR)s are faults of this
 * module.
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

/* Settings: ml_udf_batch.c */
extern bool batch_enabled;
extern int	gather_rows;
extern bool batch_everything;
extern bool batch_overlap;

/* What a twin that can answer later is asked to do: see exec/overlap.c */
#define BATCH_ASK_NOW		0	/* answer */
#define BATCH_ASK_BEGIN		1	/* begin to, and return NULL meanwhile */
#define BATCH_ASK_FORGET	2	/* drop what was begun and not answered */

/* What the twin that runs just now is asked to do */
extern __attribute__((visibility("default"))) int ml_udf_batch_asked;

/* Inputs that the twin that runs just now had an answer for, as it says */
extern __attribute__((visibility("default"))) uint64 ml_udf_batch_cached;

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
									 * CURRENT OF, and do not read ahead */
#define BATCH_PEEKED		0x20	/* the first row may be asked for for nothing */
#define BATCH_DUMMY_ROW		0x40	/* a first row of NULLs will be dropped */

/* plan/layer.c */
extern bool batch_is_layer(Plan *plan);
extern void batch_layer_unpack(CustomScan *cscan, BatchLayer *layer);

/* How the elements of a twin's array carry values of the function's type */
typedef enum BatchForm
{
	BATCH_FORM_NONE,			/* they cannot */
	BATCH_FORM_PLAIN,			/* as they are */
	BATCH_FORM_COMPOSITE,		/* in a composite type's only column */
	BATCH_FORM_BINARY			/* as bytea in the type's binary format */
} BatchForm;

/* plan/twin.c */
extern BatchForm batch_array_form(Oid arraytype, Oid valuetype);
extern Oid	batch_call_function(Node *call);
extern List *batch_call_args(Node *call);
extern Oid	batch_call_collation(Node *call);

/* exec/node.c */
extern const CustomScanMethods batch_scan_methods;

/* For _PG_init and the planner hook: plan/twin.c, plan/statement.c */
extern void batch_twin_init(void);
extern void batch_rewrite_stmt(PlannedStmt *stmt, int cursor_options);

/* For _PG_init: note/notes.c */
extern void note_init(void);

#endif							/* ML_UDF_BATCH_H */
