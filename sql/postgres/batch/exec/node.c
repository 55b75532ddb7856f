/*-------------------------------------------------------------------------
 *
 * node.c
 *	  The running layer: begin, rescan, end.
 *
 * Rows are gathered into a batch before any of them is returned, and the twin is
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
 * - a layer tells those below it to hand their errors on instead of raising
 *	 them, as far as rows reach it one by one (see find_layers_below).
 *
 * - a hash join may fetch its first outer row before it knows whether there is
 *	 anything to join it with.  It gets a dummy: a row of NULLs, which it drops
 *	 since its key matches nothing.  The calls are made when it comes again.
 *
 * Errors that are not about a row (cancel, a lost connection, ...) are raised
 * at once.  Errors raised in the child itself cannot wait: the child is not
 * usable afterwards.  Where a consumer is known to stop early, layers_above.c takes
 * the child's fallible filter clauses into the layer for this reason.
 *
 * A subplan or initplan never runs in such a subtransaction, since it keeps
 * resources beyond it.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"
#include "compat.h"

#include "catalog/objectaccess.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

static Node *create_state(CustomScan *cscan);

static void begin_layer(CustomScanState *node, EState *estate, int eflags);

static void end_layer(CustomScanState *node);

static void rescan_layer(CustomScanState *node);

const CustomScanMethods batch_scan_methods = {
	.CustomName = BATCH_NODE_NAME,
	.CreateCustomScanState = create_state,
};

static const CustomExecMethods exec_methods = {
	.CustomName = BATCH_NODE_NAME,
	.BeginCustomScan = begin_layer,
	.ExecCustomScan = batch_next_row,
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
 * Tell the layers whose rows reach us as they come to end instead of raising
 * an error, and to leave the error with us.  They are looked for below nodes
 * that keep nothing of what they read: it would be incomplete when they are
 * scanned anew.  The inner side of a join is read again for the next outer row
 * at least, which nobody wants then.
 */
static void
find_layers_below(PlanState *ps, BatchState *error_owner)
{
	PlanState **children = NULL;
	int			nchildren = 0;

	if (ps == NULL)
		return;
	switch (nodeTag(ps))
	{
		case T_CustomScanState:
			if (batch_is_layer(ps->plan))
				((BatchState *) ps)->error_owner = error_owner;
			return;
		case T_SubqueryScanState:
			find_layers_below(((SubqueryScanState *) ps)->subplan, error_owner);
			return;
		case T_AppendState:
			children = ((AppendState *) ps)->appendplans;
			nchildren = ((AppendState *) ps)->as_nplans;
			break;
		case T_MergeAppendState:
			children = ((MergeAppendState *) ps)->mergeplans;
			nchildren = ((MergeAppendState *) ps)->ms_nplans;
			break;
		case T_ResultState:
		case T_ProjectSetState:
		case T_LimitState:
		case T_LockRowsState:
		case T_NestLoopState:
		case T_MergeJoinState:
		case T_HashJoinState:
			find_layers_below(outerPlanState(ps), error_owner);
			return;
		default:
			return;
	}
	for (int i = 0; i < nchildren; i++)
		find_layers_below(children[i], error_owner);
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
	bool		overlaps;
	ListCell   *lc;

	batch_layer_unpack(cscan, &state->layer);
	state->speculative = (state->layer.flags & BATCH_READS_ALL) == 0;
	state->overlaps = batch_overlap &&
		(!state->speculative || (state->layer.flags & BATCH_CURRENT_OF) == 0);

	/* a layer runs neither backwards nor to a mark, so its child need not */
	child = ExecInitNode(outerPlan(cscan), estate,
						 eflags & ~(EXEC_FLAG_BACKWARD | EXEC_FLAG_MARK));
	outerPlanState(node) = child;
	child_desc = ExecGetResultType(child);
	state->row_slot = ExecInitExtraTupleSlot(estate, child_desc,
											 &TTSOpsMinimalTuple);
	if (state->speculative)
		find_layers_below(child, state);
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

	/* without a twin that can, there is no second batch */
	overlaps = state->overlaps;
	state->overlaps = false;
	for (int i = 0; i < state->ncalls; i++)
		state->overlaps |= overlaps && state->calls[i].answers_later;

	batch_init_inputs(state);
	(void) exec_params_walker((Node *) state->layer.calls, &state->exec_params);
	(void) exec_params_walker((Node *) state->layer.guards, &state->exec_params);
	(void) exec_params_walker((Node *) state->layer.prefilter, &state->exec_params);
	(void) exec_params_walker((Node *) cscan->scan.plan.qual, &state->exec_params);
	state->limit_count = ExecInitExpr((Expr *) state->layer.limit_count,
									  &node->ss.ps);
	state->limit_offset = ExecInitExpr((Expr *) state->layer.limit_offset,
									   &node->ss.ps);

	state->next_batch.context = AllocSetContextCreate(estate->es_query_cxt,
												 "ml_udf next batch",
												 ALLOCSET_SMALL_SIZES);
	state->batch.context = AllocSetContextCreate(estate->es_query_cxt,
												 "ml_udf batch",
												 ALLOCSET_DEFAULT_SIZES);
	state->call_context = AllocSetContextCreate(estate->es_query_cxt,
												"ml_udf call",
												ALLOCSET_DEFAULT_SIZES);
}

/* No more rows from what was gathered; drop it */
void
batch_reset(BatchState *state)
{
	ExecClearTuple(state->css.ss.ss_ScanTupleSlot);
	ExecClearTuple(state->row_slot);
	state->batch.nrows = 0;
	state->batch.next_row = 0;
	state->batch.bytes = 0;
	for (int i = 0; i < state->ncalls; i++)
	{
		state->calls[i].inputs.ninputs = 0;
		state->calls[i].inputs.answered = 0;
		state->calls[i].inputs.slice = 0;
		state->calls[i].inputs.begun = false;
		state->calls[i].inputs.begun_ms = 0;
	}
	MemoryContextReset(state->batch.context);
}

static void
rescan_layer(CustomScanState *node)
{
	BatchState *state = (BatchState *) node;
	PlanState  *child = outerPlanState(node);
	bool		failed;

	failed = state->batch.pending_error != NULL ||
		state->next_batch.pending_error != NULL || state->error_handed_up;
	state->error_from_below = NULL;
	batch_drop_next(state);
	batch_reset(state);
	if (node->ss.ps.ps_ResultTupleSlot != NULL)
		ExecClearTuple(node->ss.ps.ps_ResultTupleSlot);
	if (failed)
	{
		/* what failed when nobody wanted it must not fail now */
		batch_init_inputs(state);
		state->batch.pending_error = NULL;
		state->error_handed_up = false;
	}
	state->dummy_returned = false;
	state->peek_taken = false;
	if (state->peek_slot != NULL)
		ExecClearTuple(state->peek_slot);
	state->child_done = false;
	state->bound_passed = false;
	state->returned = 0;
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
