/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  What EXPLAIN shows of a layer: its calls, and what became of them.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"
#include "compat.h"

#include "nodes/makefuncs.h"
#include "utils/ruleutils.h"

/* Wide enough for any count and time */
#define LINE_LENGTH 256

static char *
deparse(Node *node, CustomScanState *css, List *ancestors, ExplainState *es)
{
	List	   *context = set_deparse_context_plan(es->deparse_cxt,
												  css->ss.ps.plan, ancestors);

	return deparse_expression(node, context,
							  list_length(es->rtable) > 1 || es->verbose, false);
}

static void
explain_counts_text(const BatchCounts *counts, ExplainState *es)
{
	double		batches = (double) counts->batches;
	char		line[LINE_LENGTH];

	snprintf(line, sizeof(line), UINT64_FORMAT " of " UINT64_FORMAT
			 " rows sent in " UINT64_FORMAT " batches", counts->sent,
			 counts->rows, counts->batches);
	ExplainPropertyText("Inputs", line, es);
	if (counts->batches == 0)
		return;
	if (counts->cached > 0)
	{
		snprintf(line, sizeof(line), UINT64_FORMAT " of " UINT64_FORMAT
				 " inputs answered before", counts->cached, counts->sent);
		ExplainPropertyText("Cached", line, es);
	}
	snprintf(line, sizeof(line), "avg=%.1f min=" UINT64_FORMAT " max=" UINT64_FORMAT,
			 counts->sent / batches, counts->min_sent, counts->max_sent);
	ExplainPropertyText("Batch Size", line, es);
	if (!es->timing)
		return;
	snprintf(line, sizeof(line), "total=%.3f avg=%.3f min=%.3f max=%.3f ms",
			 counts->total_ms, counts->total_ms / batches, counts->min_ms,
			 counts->max_ms);
	ExplainPropertyText("Batch Time", line, es);
}

static void
explain_counts(const BatchCounts *counts, ExplainState *es)
{
	double		batches = (double) Max(counts->batches, 1);

	ExplainPropertyUInteger("Batches", NULL, counts->batches, es);
	ExplainPropertyUInteger("Rows", NULL, counts->rows, es);
	ExplainPropertyUInteger("Inputs Sent", NULL, counts->sent, es);
	ExplainPropertyUInteger("Inputs Cached", NULL, counts->cached, es);
	ExplainPropertyFloat("Average Batch Size", NULL, counts->sent / batches, 1, es);
	ExplainPropertyUInteger("Minimum Batch Size", NULL, counts->min_sent, es);
	ExplainPropertyUInteger("Maximum Batch Size", NULL, counts->max_sent, es);
	if (!es->timing)
		return;
	ExplainPropertyFloat("Total Batch Time", "ms", counts->total_ms, 3, es);
	ExplainPropertyFloat("Average Batch Time", "ms", counts->total_ms / batches, 3, es);
	ExplainPropertyFloat("Minimum Batch Time", "ms", counts->min_ms, 3, es);
	ExplainPropertyFloat("Maximum Batch Time", "ms", counts->max_ms, 3, es);
}

/* ExplainCustomScan: the calls, and with ANALYZE their counts */
void
batch_explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	BatchState *state = (BatchState *) node;
	bool		text = (es->format == EXPLAIN_FORMAT_TEXT);

	if (state->layer.prefilter != NIL)
		ExplainPropertyText("Gather Filter",
							deparse((Node *) make_ands_explicit(state->layer.prefilter),
									node, ancestors, es), es);

	ExplainOpenGroup("Batched Calls", "Batched Calls", false, es);
	for (int i = 0; i < state->ncalls; i++)
	{
		Node	   *guard = list_nth(state->layer.guards, i);
		BatchCounts counts = batch_total(state, i);

		ExplainOpenGroup("Batched Call", NULL, true, es);
		ExplainPropertyText("Batched",
							deparse(state->calls[i].expr, node, ancestors, es),
							es);
		if (guard != NULL)
			ExplainPropertyText("Only If", deparse(guard, node, ancestors, es), es);
		if (es->analyze && text)
			explain_counts_text(&counts, es);
		else if (es->analyze)
			explain_counts(&counts, es);
		ExplainCloseGroup("Batched Call", NULL, true, es);
	}
	ExplainCloseGroup("Batched Calls", "Batched Calls", false, es);
}
