/*-------------------------------------------------------------------------
 *
 * exec.h
 *	  The state of a running layer, and what the files share that run it.
 *
 *	  node.c	the CustomScan: begin, rescan, end
 *	  next_row.c	the next row
 *	  gather.c	reads the child, when no row is left to return
 *	  inputs.c	lists the distinct inputs of the rows
 *	  call.c	answers inputs, a slice at a time, through the twin
 *	  settings.c	what the function was given by SET, for its twin
 *	  overlap.c	the next batch, gathered and begun while this one is returned
 *	  arrays.c	makes arrays of them, and takes results out of arrays
 *	  errors.c	holds errors until their row is asked for
 *	  instrument.c, explain.c	what EXPLAIN shows, workers included
 *
 *-------------------------------------------------------------------------
 */
#ifndef ML_UDF_BATCH_EXEC_H
#define ML_UDF_BATCH_EXEC_H

#include "ml_udf_batch.h"

#include "access/parallel.h"
#include "executor/executor.h"
#include "portability/instr_time.h"

/*
 * Inputs of the first batch at most, while it is not known how wide the results
 * of a type of wide ones are: a thousand vectors of a thousand numbers fill
 * work_mem as it is by default.
 */
#define BATCH_FIRST_WIDE 256

/* Room in the first batch for a consumer that may stop, and in new arrays */
#define BATCH_FIRST 16

/* Allocator's and array's overhead of one row or value */
#define BATCH_OVERHEAD_BYTES 24

/* The input of a row whose call is masked, or strict and given a NULL */
#define BATCH_NO_INPUT (-1)

/* How the values of one argument, or of the result, travel in an array */
typedef struct BatchType
{
	Oid			type;			/* the scalar function's type */
	int16		typlen;
	bool		typbyval;
	Oid			elemtype;		/* element type of the twin's array */
	int16		elemlen;
	bool		elembyval;
	char		elemalign;
	BatchForm	form;
	TupleDesc	wrapper;		/* of elemtype, in the composite form */
	int			wrapper_attno;	/* its column that holds the value, from 0 */
	Oid			receive;		/* of type, in the binary form */
	Oid			receive_param;
	FmgrInfo	receive_flinfo;
	bool		wide;			/* may have values of kilobytes */
} BatchType;

/* What EXPLAIN ANALYZE shows of one call; lives in shared memory, too */
typedef struct BatchCounts
{
	uint64		batches;
	uint64		rows;			/* rows gathered for them */
	uint64		sent;			/* distinct inputs given to the twin */
	uint64		cached;			/* of these, answered before, as the twin says */
	uint64		min_sent;
	uint64		max_sent;
	double		total_ms;
	double		min_ms;
	double		max_ms;
} BatchCounts;

/* One slot of an input table; entries of other batches are empty */
typedef struct InputSlot
{
	uint32		batch;
	uint32		hash;
	int			input;
} InputSlot;

/* The distinct inputs of one call in a batch, in the order of their rows */
typedef struct CallInputs
{
	int			ninputs;
	int			maxinputs;
	Datum	   *values;			/* maxinputs * nargs */
	bool	   *nulls;
	Datum	   *results;
	bool	   *result_nulls;
	int			answered;		/* inputs before this one have results */
	int			slice;			/* how many to answer next; 0: all */
	InputSlot  *slots;
	uint32		nslots;			/* a power of 2, or 0 */
	int		   *row_inputs;		/* per row of the batch */
	bool		begun;			/* the twin computes them, and has not been asked */
	double		begun_ms;		/* what it took to begin */
} CallInputs;

/* Rows gathered together */
typedef struct Batch
{
	MemoryContext context;		/* rows, inputs, results */
	uint32		number;			/* marks input slots */
	int			nrows;
	int			maxrows;
	int			next_row;		/* to be returned */
	MinimalTuple *tuples;
	ItemPointerData *tids;		/* identities of rows for WHERE CURRENT OF */
	Size		bytes;			/* of rows and inputs */
	ErrorData  *pending_error;	/* the error of the row after the last one */
} Batch;

/* One call that the layer makes */
typedef struct CallState
{
	Node	   *expr;
	Oid			funcid;
	Oid			twinid;			/* InvalidOid: call the function per input */
	FmgrInfo	flinfo;			/* of the twin, or of the function */
	Oid			collation;
	bool		strict;			/* the function's strictness */
	bool		answers_later;	/* its twin can: see overlap.c */
	List	   *settings;		/* under which its twin is called: see settings.c */
	int			nargs;
	BatchType  *argtypes;
	BatchType	result;
	ExprState  *guard;			/* NULL: always sent */
	ExprState **args;
	Datum	   *row_values;		/* arguments of the row being gathered */
	bool	   *row_nulls;
	bool		row_masked;

	CallInputs	inputs;			/* of the batch that is gathered or returned */
	CallInputs	next_inputs;	/* of the one after it */

	double		result_bytes;	/* per input of the last batch; 0: not known */
	BatchCounts counts;
} CallState;

/* A running layer */
typedef struct BatchState
{
	CustomScanState css;
	BatchLayer	layer;
	List	   *exec_params;	/* PARAM_EXECs used while gathering, of int */
	bool		speculative;	/* rows may be gathered that nobody asks for */
	struct BatchState *error_owner; /* the layer above that raises our errors,
									 * or NULL: we do */
	ErrorData  *error_from_below;	/* what a layer below has handed to us */
	bool		error_handed_up;	/* we have handed on an error of ours */

	int			ncalls;
	CallState  *calls;
	ExprContext *input_context; /* for prefilter, guards, arguments */
	ExprState  *prefilter;
	ExprState  *limit_count;
	ExprState  *limit_offset;
	int			nchild;			/* columns of the child */
	bool	   *kept;			/* which of them are needed */
	bool		keep_all;

	Batch		batch;			/* that is gathered or returned */
	Batch		next_batch;		/* the one after it, if it is filled */
	bool		next_filled;
	bool		overlaps;		/* two batches are kept, if the twins can */
	uint32		last_batch;		/* number given last */
	MemoryContext call_context; /* while the twin runs */
	bool		child_done;
	bool		bound_passed;	/* the child knows our limit */

	int			target;			/* inputs of the next batch */
	uint64		returned;		/* rows asked of us since the last rescan */
	TupleTableSlot *row_slot;	/* a gathered row */
	TupleTableSlot *peek_slot;	/* the child's first row, if it was peeked at */
	bool		peek_taken;
	bool		dummy_returned; /* see node.c */
	bool		dummy_counted;

	BatchCounts *shared;		/* in a worker or its leader: all processes' */
	int			nshared;		/* processes */
} BatchState;

/* node.c */
extern void batch_init_inputs(BatchState *state);
extern void batch_reset(BatchState *state);

/* next_row.c */
extern TupleTableSlot *batch_next_row(CustomScanState *node);

/* gather.c */
extern void batch_gather(BatchState *state);
extern bool batch_peek(BatchState *state);

/* inputs.c */
extern int	batch_find_input(BatchState *state, CallState *call);

/* call.c */
extern void batch_call_begin(BatchState *state, CallState *call);
extern void batch_call_reset(BatchState *state, CallState *call);
extern bool batch_call_twin(BatchState *state, CallState *call, int first,
							int n, int asked);
extern bool batch_answer(BatchState *state, CallState *call, int input);

/* settings.c */
extern bool batch_answers_later(Oid twinid);
extern List *batch_own_settings(Oid funcid, Oid twinid);
extern int	batch_apply_settings(List *settings);
extern void batch_restore_settings(int nestlevel);

/* overlap.c */
extern void batch_begin_next(BatchState *state);
extern void batch_take_next(BatchState *state);
extern void batch_drop_next(BatchState *state);

/* arrays.c */
extern void batch_type_init(BatchType *type, Oid valuetype, Oid arraytype);
extern void batch_type_reset(BatchType *type, MemoryContext context);
extern Datum batch_make_argument(CallState *call, int arg, int first, int n);
extern void batch_take_results(BatchState *state, CallState *call,
							   Datum result, int first, int n);

/* errors.c: what batch_try() runs, with the argument that it was given */
typedef void (*BatchBlock) (BatchState *state, void *arg);
extern ErrorData *batch_try(BatchState *state, BatchBlock block, void *arg);
extern bool batch_can_hold_error(BatchState *state, int flag);

/* instrument.c */
extern void batch_count_rows(BatchState *state, int rows);
extern void batch_count_cached(BatchState *state, CallState *call);
extern void batch_count_call(BatchState *state, CallState *call, int sent,
							 double ms);
extern BatchCounts batch_total(BatchState *state, int call);
extern Size batch_estimate_dsm(CustomScanState *node, ParallelContext *pcxt);
extern void batch_init_dsm(CustomScanState *node, ParallelContext *pcxt,
						   void *coordinate);
extern void batch_reinit_dsm(CustomScanState *node, ParallelContext *pcxt,
							 void *coordinate);
extern void batch_init_worker(CustomScanState *node, shm_toc *toc,
							  void *coordinate);
extern void batch_shutdown(CustomScanState *node);

/* explain.c */
extern void batch_explain(CustomScanState *node, List *ancestors,
						  struct ExplainState *es);

#endif							/* ML_UDF_BATCH_EXEC_H */
