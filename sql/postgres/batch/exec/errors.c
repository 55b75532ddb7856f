/*-------------------------------------------------------------------------
 *
 * errors.c
 *	  Errors that can be held until the row they belong to is asked for.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"
#include "compat.h"

#include "utils/memutils.h"
#include "utils/resowner.h"

/*
 * Errors that say something about the system, not about a row.  Trying again
 * would only repeat them, at best; a cancel must not be tried away.
 */
static bool
is_about_rows(ErrorData *error)
{
	/* of its class alone, it says that an input names a file that is not there */
	if (error->sqlerrcode == ERRCODE_UNDEFINED_FILE)
		return true;

	switch (ERRCODE_TO_CATEGORY(error->sqlerrcode))
	{
		case ERRCODE_CONNECTION_EXCEPTION:
		case ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION:
		case ERRCODE_INVALID_TRANSACTION_STATE:
		case ERRCODE_EXTERNAL_ROUTINE_INVOCATION_EXCEPTION:
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case MAKE_SQLSTATE('5', '5', '0', '0', '0'):	/* object state, locks */
		case MAKE_SQLSTATE('5', '7', '0', '0', '0'):	/* cancel, shutdown */
		case ERRCODE_SYSTEM_ERROR:
		case ERRCODE_CONFIG_FILE_ERROR:
		case ERRCODE_INTERNAL_ERROR:
			return false;
		default:
			return true;
	}
}

/*
 * Run a block in a subtransaction.  Returns NULL, or the error if it is one
 * that concerns the rows in question only; raises any other.  The block must
 * leave nothing behind that the end of a subtransaction would take away.  The
 * error lives as long as the node; FreeErrorData() frees it.
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
		if (!is_about_rows(error))
			ReThrowError(error);
	}
	PG_END_TRY();

	return error;
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

/*
 * Can an error of evaluating our inputs (BATCH_INPUT_FALLIBLE), or our qual
 * (BATCH_QUAL_FALLIBLE), wait for its row?
 */
bool
batch_can_hold_error(BatchState *state, int flag)
{
	return state->speculative && (state->layer.flags & flag) != 0 &&
		!initplan_pending(state);
}
