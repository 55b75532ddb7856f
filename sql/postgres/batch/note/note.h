/*-------------------------------------------------------------------------
 *
 * note.h
 *	  Which rows a watch has to look at: what the files of note/ share.
 *
 *	  note_key.c	the SQL functions, called by a trigger's WHEN
 *	  condition.c	what stands for that WHEN while a statement runs
 *	  notes.c		the keys that the running transaction has noted
 *	  store.c		stores them
 *	  ring.c		in memory that sessions share, if they can go there
 *
 *-------------------------------------------------------------------------
 */
#ifndef ML_UDF_NOTE_H
#define ML_UDF_NOTE_H

#include "ml_udf_batch.h"

#include "datatype/timestamp.h"
#include "fmgr.h"

/* Most keys of one stored note, as ml_udf.scoring.watch.NOTE_KEYS */
#define NOTE_KEYS 1000

/* Keys of one watch and one type; integers as int64, others as text */
typedef struct NoteKeys
{
	bool		are_integers;
	int			count;
	int			room;
	Datum	   *keys;
} NoteKeys;

/* Of a value */
typedef struct NoteType
{
	Oid			type;
	int16		length;
	bool		by_value;
} NoteType;

/* note_key.c */
extern Datum ml_udf_note_key(PG_FUNCTION_ARGS);
extern Datum ml_udf_note_change(PG_FUNCTION_ARGS);
extern void note_key(int32 watch, NoteType type, Datum key);
extern void note_change(int32 watch,
						NoteType key, NullableDatum key_was, NullableDatum key_now,
						NoteType input, NullableDatum input_was, NullableDatum input_now);

/* condition.c */
extern void condition_init(void);

/* notes.c */
extern void note_add(int32 watch, bool is_integer, Datum key);

/* store.c */
extern void note_store(int32 watch, const NoteKeys *noted, int first, int count,
					   bool at_commit);
extern void store_init(void);
extern void note_store_look(int32 watch);
extern void note_store_new(Oid new_notes, int32 watch, TimestampTz noted_at,
						   const Datum *keys, int count);

/* ring.c */
extern Datum ml_udf_make_rings(PG_FUNCTION_ARGS);
extern Datum ml_udf_ring_notes(PG_FUNCTION_ARGS);
extern Datum ml_udf_take_ring_notes(PG_FUNCTION_ARGS);
extern bool ring_add(int32 watch, const Datum *keys, int count);
extern void ring_end(bool committed);
extern void ring_forget(Oid changed);
extern void ring_init(void);

#endif							/* ML_UDF_NOTE_H */
