/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Where PostgreSQL 15 to 18 differ for this module, and nothing else.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ML_UDF_BATCH_COMPAT_H
#define ML_UDF_BATCH_COMPAT_H

#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "commands/explain.h"
#include "utils/acl.h"

#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#endif

/* One function for all kinds of objects, from 16 */
#if PG_VERSION_NUM < 160000
#define function_aclcheck(funcid, roleid, mode) \
	pg_proc_aclcheck(funcid, roleid, mode)
#else
#define function_aclcheck(funcid, roleid, mode) \
	object_aclcheck(ProcedureRelationId, funcid, roleid, mode)
#endif

/*
 * Up to 16 no subtransaction can begin while a parallel plan runs, not even
 * an internal one that assigns no XID.
 */
#if PG_VERSION_NUM < 170000
#define subtransaction_allowed() (!IsInParallelMode())
#else
#define subtransaction_allowed() true
#endif

/* 18 can reserve room in front of the tuple */
#if PG_VERSION_NUM < 180000
#define form_minimal_tuple(desc, values, isnull) \
	heap_form_minimal_tuple(desc, values, isnull)
#else
#define form_minimal_tuple(desc, values, isnull) \
	heap_form_minimal_tuple(desc, values, isnull, 0)
#endif

/* From 17 on it can look for stronger modes, too */
#if PG_VERSION_NUM < 170000
#define lock_held_by_me(tag, mode) LockHeldByMe(tag, mode)
#else
#define lock_held_by_me(tag, mode) LockHeldByMe(tag, mode, false)
#endif

#endif							/* ML_UDF_BATCH_COMPAT_H */
