/*-------------------------------------------------------------------------
 *
 * note.h
 *	  Which rows a watch has to look at: what the files of note/ share.
 *
 *	  note_key.c	the SQL functions, called by a trigger's WHEN
 *	  condition.c	what stands for that WHEN while a statement runs
 *	  notes.c		the keys that the running transaction has noted
 *	  store.c		stores them in ml_udf's tables
 *
 *-------------------------------------------------------------------------
 */
#ifndef ML_UDF_NOTE_H
#define ML_UDF_NOTE_H

#include "ml_udf_batch.h"

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

#endif							/* ML_UDF_NOTE_H */
