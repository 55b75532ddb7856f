/*-------------------------------------------------------------------------
 *
 * note.h
 *	  Which rows a watch has to look at: what the files of note/ share.
 *
 *	  note_key.c	the SQL functions, called by a trigger's WHEN
 *	  notes.c		the keys that the running transaction has noted
 *	  store.c		stores them in ml_udf's tables
 *
 *-------------------------------------------------------------------------
 */
#ifndef ML_UDF_NOTE_H
#define ML_UDF_NOTE_H

#include "ml_udf_batch.h"

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

/* notes.c */
extern void note_add(int32 watch, bool is_integer, Datum key);

/* store.c */
extern void note_store(int32 watch, const NoteKeys *noted, int first, int count,
					   bool at_commit);
extern void store_init(void);
extern void note_store_look(int32 watch);

#endif							/* ML_UDF_NOTE_H */
