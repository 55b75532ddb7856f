/*-------------------------------------------------------------------------
 *
 * execute.c
 *	  The running layer: begin, next row, rescan, end.
 *
 * Rows are gathered into a batch before any of them is served, and the twin is
 * called for the inputs of all of them.  So a layer reads, evaluates and calls
 * ahead of its consumer, which may never ask for the rest.  What goes wrong
 * with a row must then be raised when that row is asked for, not before:
 *
 * - guards and arguments that may fail are evaluated in a subtransaction.  The
 *	 error ends the batch and waits behind its last row.
 *
 * - so is the twin called.  If it fails for a batch, it is called again for
 *	 the first input alone, then for slices that grow (see call.c), until the
 *	 row that is at fault is the one asked for.
 *
 * - a layer over a layer tells it to hand its error on instead of raising it.
 *
 * - a hash join may fetch its first outer row before it knows whether there is
 *	 anything to join it with.  It gets a phantom: a row of NULLs, which it drops
 *	 since its key matches nothing.  The calls are made when it comes again.
 *
 * Errors that are not about a row (cancel, a lost connection, ...) are raised
 * at once.  Errors raised in the child itself cannot wait: the child is not
 * usable afterwards.  Where a consumer is known to stop early, layer.c takes
 * the child's fallible filter clauses into the layer for this reason.
 *
 * A subplan or initplan never runs in such a subtransaction, since it keeps
 * resources beyond it.
 *
 *-------------------------------------------------------------------------
 */
#include "execute.h"
#include "compat.h"

#include "catalog/objectaccess.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"

static Node *create_state(CustomScan *cscan);
static void begin_layer(CustomScanState *node, EState *estate, int eflags);
static TupleTableSlot *next_row(CustomScanState *node);
static void end_layer(CustomScanState *node);
static void rescan_layer(CustomScanState *node);

const CustomScanMethods batch_scan_methods = {
	.CustomName = BATCH_NODE_NAME,
	.CreateCustomScanState = create_state,
};

static const CustomExecMethods exec_methods = {
	.CustomName = BATCH_NODE_NAME,
	.BeginCustomScan = begin_layer,
	.ExecCustomScan = next_row,
	.EndCustomScan = end_layer,
	.ReScanCustomScan = rescan_layer,
	.EstimateDSMCustomScan = batch_estimate_dsm,
	.InitializeDSMCustomScan = batch_init_dsm,
	.ReInitializeDSMCustomScan = batch_reinit_dsm,
	.InitializeWorkerCustomScan = batch_init_worker,
	.ShutdownCustomScan = batch_shutdown,
	.ExplainCustomScan = batch_explain,
};


static Node *
create_state(CustomScan *cscan)
{
	BatchState *state = (BatchState *) newNode(sizeof(BatchState),
											   T_CustomScanState);

	state->css.methods = &exec_methods;
	return (Node *) state;
}

/*
 * Run a block in a subtransaction.  Returns NULL, or the error if it is one
 * that concerns the rows in question only; raises any other.  The block must
 * leave nothing behind that the end of a subtransaction would take away.
 */
ErrorData *
batch_try(BatchState *state, BatchBlock block, void *arg)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ResourceOwner oldowner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	if (!subtransaction_allowed())
	{
		block(state, arg);
		return NULL;
	}

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(oldcontext);
	PG_TRY();
	{
		block(state, arg);
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(oldcontext);
		CurrentResourceOwner = oldowner;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(state->css.ss.ps.state->es_query_cxt);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(oldcontext);
		CurrentResourceOwner = oldowner;
		if (!batch_error_is_rows(error))
			ReThrowError(error);
	}
	PG_END_TRY();

	return error;
}

/* The same right that the executor checks for a call in an expression */
static void
check_execute_right(Oid funcid)
{
	AclResult	result = function_aclcheck(funcid, GetUserId(), ACL_EXECUTE);

	if (result != ACLCHECK_OK)
		aclcheck_error(result, OBJECT_FUNCTION, get_func_name(funcid));
	InvokeFunctionExecuteHook(funcid);
}

/*
 * Prepare what is evaluated while gathering.  Called again after an error was
 * held in such an evaluation: the functions in it may have kept a state that
 * is broken now, so neither they nor the callbacks they left are used again.
 */
void
batch_init_inputs(BatchState *state)
{
	PlanState  *ps = &state->css.ss.ps;
	MemoryContext oldcontext = MemoryContextSwitchTo(ps->state->es_query_cxt);

	if (state->input_context != NULL)
		FreeExprContext(state->input_context, false);
	state->input_context = CreateExprContext(ps->state);
	state->prefilter = ExecInitQual(state->layer.prefilter, ps);
	for (int i = 0; i < state->ncalls; i++)
	{
		CallState  *call = &state->calls[i];
		List	   *args = batch_call_args(call->expr);

		call->guard = ExecInitExpr(list_nth(state->layer.guards, i), ps);
		for (int j = 0; j < call->nargs; j++)
			call->args[j] = ExecInitExpr(list_nth(args, j), ps);
	}
	MemoryContextSwitchTo(oldcontext);
}

/*
 * The layer whose rows we read, if only nodes are in between that hand on the
 * end of their input as their own.  Told to, it ends instead of raising an
 * error, and we find the error there.
 */
static BatchState *
find_layer_below(PlanState *ps)
{
	while (ps != NULL)
	{
		switch (nodeTag(ps))
		{
			case T_CustomScanState:
				return batch_is_layer(ps->plan) ? (BatchState *) ps : NULL;
			case T_SubqueryScanState:
				ps = ((SubqueryScanState *) ps)->subplan;
				break;
			case T_ResultState:
			case T_ProjectSetState:
			case T_LimitState:
			case T_LockRowsState:
				ps = outerPlanState(ps);
				break;
			default:
				return NULL;
		}
	}
	return NULL;
}

static bool
exec_params_walker(Node *node, List **params)
{
	if (node == NULL)
		return false;
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC)
		*params = list_append_unique_int(*params, ((Param *) node)->paramid);
	return expression_tree_walker(node, exec_params_walker, params);
}

static void
begin_layer(CustomScanState *node, EState *estate, int eflags)
{
	BatchState *state = (BatchState *) node;
	CustomScan *cscan = (CustomScan *) node->ss.ps.plan;
	PlanState  *child;
	TupleDesc	child_desc;
	ListCell   *lc;

	batch_layer_unpack(cscan, &state->layer);
	state->protect = (state->layer.flags & BATCH_READS_ALL) == 0;

	/* a layer runs neither backwards nor to a mark, so its child need not */
	child = ExecInitNode(outerPlan(cscan), estate,
						 eflags & ~(EXEC_FLAG_BACKWARD | EXEC_FLAG_MARK));
	outerPlanState(node) = child;
	child_desc = ExecGetResultType(child);
	state->row_slot = ExecInitExtraTupleSlot(estate, child_desc,
											 &TTSOpsMinimalTuple);
	state->child_layer = find_layer_below(child);
	if (state->child_layer != NULL)
		state->child_layer->defer_errors = state->protect;
	if ((state->layer.flags & BATCH_PEEKED) &&
		!(batch_is_layer(child->plan) &&
		  (((BatchState *) child)->layer.flags & BATCH_PEEKED)))
		state->peek_slot = ExecInitExtraTupleSlot(estate, child_desc,
												  ExecGetResultSlotOps(child, NULL));

	state->nchild = child_desc->natts;
	state->kept = palloc0(sizeof(bool) * Max(state->nchild, 1));
	state->keep_all = (list_length(state->layer.kept) == state->nchild);
	foreach(lc, state->layer.kept)
		state->kept[lfirst_int(lc) - 1] = true;

	/* For WHERE CURRENT OF we stand in for the scan below us */
	if ((state->layer.flags & BATCH_CURRENT_OF) &&
		(IsA(child, CustomScanState) || IsA(child, SeqScanState) ||
		 IsA(child, SampleScanState) || IsA(child, IndexScanState) ||
		 IsA(child, IndexOnlyScanState) || IsA(child, BitmapHeapScanState) ||
		 IsA(child, TidScanState) || IsA(child, TidRangeScanState) ||
		 IsA(child, ForeignScanState)))
		node->ss.ss_currentRelation = ((ScanState *) child)->ss_currentRelation;

	state->ncalls = list_length(state->layer.calls);
	state->calls = palloc0(sizeof(CallState) * state->ncalls);
	for (int i = 0; i < state->ncalls; i++)
	{
		CallState  *call = &state->calls[i];

		call->expr = list_nth(state->layer.calls, i);
		call->funcid = batch_call_function(call->expr);
		call->twinid = list_nth_oid(state->layer.twins, i);
		check_execute_right(call->funcid);
		if (OidIsValid(call->twinid))
			check_execute_right(call->twinid);
		batch_call_begin(state, call);
	}

	batch_init_inputs(state);
	(void) exec_params_walker((Node *) state->layer.calls, &state->exec_params);
	(void) exec_params_walker((Node *) state->layer.guards, &state->exec_params);
	(void) exec_params_walker((Node *) state->layer.prefilter, &state->exec_params);
	(void) exec_params_walker((Node *) cscan->scan.plan.qual, &state->exec_params);
	state->limit_count = ExecInitExpr((Expr *) state->layer.limit_count,
									  &node->ss.ps);
	state->limit_offset = ExecInitExpr((Expr *) state->layer.limit_offset,
									   &node->ss.ps);

	state->batch_context = AllocSetContextCreate(estate->es_query_cxt,
												 "ml_udf batch",
												 ALLOCSET_DEFAULT_SIZES);
	state->call_context = AllocSetContextCreate(estate->es_query_cxt,
												"ml_udf call",
												ALLOCSET_DEFAULT_SIZES);
}

/* No more rows from what was gathered; drop it */
static void
forget_batch(BatchState *state)
{
	ExecClearTuple(state->css.ss.ss_ScanTupleSlot);
	ExecClearTuple(state->row_slot);
	state->nrows = 0;
	state->next = 0;
	state->bytes = 0;
	for (int i = 0; i < state->ncalls; i++)
	{
		state->calls[i].nitems = 0;
		state->calls[i].answered = 0;
		state->calls[i].slice = 0;
	}
	MemoryContextReset(state->batch_context);
}

/*
 * The row that failed is asked for now.  Raise its error, or hand it to a
 * layer above that reads ahead itself.
 */
static void
raise_pending(BatchState *state)
{
	ErrorData  *error = state->pending;

	state->pending = NULL;
	state->child_done = true;
	if (!state->defer_errors)
		ReThrowError(error);
	state->deferred = error;
}

/* The error of a row that was gathered already: it ends the batch there */
static void
end_batch_at(BatchState *state, int row, ErrorData *error)
{
	state->nrows = row;
	state->pending = error;
}

/* Put a gathered row and its results into the scan tuple */
static void
load_row(BatchState *state, int row)
{
	TupleTableSlot *slot = state->css.ss.ss_ScanTupleSlot;
	TupleTableSlot *source = state->row_slot;
	int			column = state->nchild;

	ExecClearTuple(slot);
	ExecStoreMinimalTuple(state->tuples[row], source, false);
	slot_getallattrs(source);
	memcpy(slot->tts_values, source->tts_values, sizeof(Datum) * column);
	memcpy(slot->tts_isnull, source->tts_isnull, sizeof(bool) * column);
	for (int i = 0; i < state->ncalls; i++, column++)
	{
		CallState  *call = &state->calls[i];
		int			item = call->row_items[row];

		slot->tts_isnull[column] =
			(item == BATCH_NO_ITEM || call->result_nulls[item]);
		slot->tts_values[column] =
			slot->tts_isnull[column] ? (Datum) 0 : call->results[item];
	}
	ExecStoreVirtualTuple(slot);

	if (state->css.ss.ss_currentRelation != NULL)
	{
		slot->tts_tid = state->tids[row];
		slot->tts_tableOid = RelationGetRelid(state->css.ss.ss_currentRelation);
	}
}

static void
test_qual(BatchState *state, void *arg)
{
	PlanState  *ps = &state->css.ss.ps;

	*(bool *) arg = ExecQual(ps->qual, ps->ps_ExprContext);
}

/* Is an initplan still to be run by an expression of ours? */
static bool
initplan_pending(BatchState *state)
{
	ListCell   *lc;

	foreach(lc, state->exec_params)
	{
		if (state->css.ss.ps.state->es_param_exec_vals[lfirst_int(lc)].execPlan != NULL)
			return true;
	}
	return false;
}

/* Can an error of evaluating our inputs, or our qual, be held? */
bool
batch_can_hold_error(BatchState *state, int flag)
{
	return state->protect && (state->layer.flags & flag) != 0 &&
		!initplan_pending(state);
}

/* Does the loaded row pass our filter?  May end the batch with an error. */
static bool
row_passes(BatchState *state, int row)
{
	PlanState  *ps = &state->css.ss.ps;
	bool		passes = false;
	ErrorData  *error = NULL;

	if (ps->qual == NULL)
		return true;
	if (state->defer_errors && batch_can_hold_error(state, BATCH_QUAL_FALLIBLE))
		error = batch_try(state, test_qual, &passes);
	else
		test_qual(state, &passes);

	if (error != NULL)
		end_batch_at(state, row, error);
	else if (!passes)
		InstrCountFiltered1(&state->css, 1);
	return passes;
}

/* Have all calls of a row been answered, or can they be now? */
static bool
row_answered(BatchState *state, int row)
{
	for (int i = 0; i < state->ncalls; i++)
	{
		CallState  *call = &state->calls[i];
		int			item = call->row_items[row];

		if (item >= call->answered && !batch_answer(state, call, item))
		{
			end_batch_at(state, row, state->pending);
			return false;
		}
	}
	return true;
}

/* A row of NULLs, as our result */
static TupleTableSlot *
phantom_row(BatchState *state)
{
	PlanState  *ps = &state->css.ss.ps;
	TupleTableSlot *slot = ps->ps_ProjInfo != NULL ? ps->ps_ResultTupleSlot :
		state->css.ss.ss_ScanTupleSlot;

	state->phantom_counted = (ps->instrument != NULL);
	return ExecStoreAllNullTuple(slot);
}

static TupleTableSlot *
next_row(CustomScanState *node)
{
	BatchState *state = (BatchState *) node;
	PlanState  *ps = &node->ss.ps;
	ExprContext *econtext = ps->ps_ExprContext;

	/* cursors that could turn around were left without layers */
	if (!ScanDirectionIsForward(ps->state->es_direction))
		elog(ERROR, "ml_udf: a batch cannot be read backwards");

	if (state->layer.flags & BATCH_PHANTOM)
	{
		if (!state->phantom_served)
		{
			state->phantom_served = true;
			if (batch_peek(state))
				return phantom_row(state);
		}
		else if (state->phantom_counted)
		{
			/* EXPLAIN ANALYZE should not show it */
			ps->instrument->tuplecount -= 1;
			state->phantom_counted = false;
		}
	}

	for (;;)
	{
		int			row;

		CHECK_FOR_INTERRUPTS();

		if (state->next >= state->nrows)
		{
			if (state->pending != NULL)
				raise_pending(state);
			if (state->child_done)
			{
				forget_batch(state);
				return NULL;
			}
			forget_batch(state);
			batch_gather(state);
			continue;
		}

		row = state->next;
		if (!row_answered(state, row))
			continue;
		state->next++;

		ResetExprContext(econtext);
		load_row(state, row);
		econtext->ecxt_scantuple = node->ss.ss_ScanTupleSlot;
		if (!row_passes(state, row))
			continue;

		state->served++;
		return ps->ps_ProjInfo != NULL ? ExecProject(ps->ps_ProjInfo) :
			node->ss.ss_ScanTupleSlot;
	}
}

static void
rescan_layer(CustomScanState *node)
{
	BatchState *state = (BatchState *) node;
	PlanState  *child = outerPlanState(node);

	forget_batch(state);
	if (node->ss.ps.ps_ResultTupleSlot != NULL)
		ExecClearTuple(node->ss.ps.ps_ResultTupleSlot);
	if (state->pending != NULL || state->deferred != NULL)
	{
		/* what failed when nobody wanted it must not fail now */
		batch_init_inputs(state);
		state->pending = NULL;
		state->deferred = NULL;
	}
	state->phantom_served = false;
	state->peek_taken = false;
	if (state->peek_slot != NULL)
		ExecClearTuple(state->peek_slot);
	state->child_done = false;
	state->bound_passed = false;
	state->served = 0;
	state->target = 0;

	/* a child with changed Params rescans itself when it is run next */
	if (child->chgParam == NULL)
		ExecReScan(child);
}

static void
end_layer(CustomScanState *node)
{
	ExecEndNode(outerPlanState(node));
}
