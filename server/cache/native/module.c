/* The module `_answers`: keys of rows, and a table of kept answers, many at a time.
 *
 * All keys of a call are looked at in steps of some tens: first the memory of each is asked for, then it is
 * read, so that waits for memory overlap. Nothing calls back into Python between a look and a change. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "answers.h"
#include "siphash.h"

enum {
    STEP = 32,             /* keys whose memory is on its way at once */
    UNLOCKED_BYTES = 2048, /* a row from which on others may run while it is hashed, as with hashlib */
};

typedef struct {
    PyObject_HEAD
    Table table;
} Answers;

typedef struct {
    const char *bytes;
    size_t size;
} Cell;

static PyObject *no_memory(void) { return PyErr_NoMemory(); }

/* ── keys ─────────────────────────────────────────────────────────────────────────────────────────── */

static PyObject *key_of_row(SipState begun, PyObject *row, int skips_empty)
{
    unsigned char hash[KEY_BYTES];
    if (PyBytes_CheckExact(row)) {
        size_t size = (size_t)PyBytes_GET_SIZE(row);
        const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(row);
        if (size == 0 && skips_empty)
            Py_RETURN_NONE;
        if (size < UNLOCKED_BYTES) {
            sip_end(begun, bytes, size, KEY_BYTES, hash);
        } else {
            Py_INCREF(row);
            Py_BEGIN_ALLOW_THREADS;
            sip_end(begun, bytes, size, KEY_BYTES, hash);
            Py_END_ALLOW_THREADS;
            Py_DECREF(row);
        }
    } else {
        Py_buffer view;
        if (PyObject_GetBuffer(row, &view, PyBUF_SIMPLE) < 0)
            return NULL;
        sip_end(begun, view.buf, (size_t)view.len, KEY_BYTES, hash);
        PyBuffer_Release(&view);
    }
    return PyBytes_FromStringAndSize((char *)hash, KEY_BYTES);
}

static PyObject *module_keys_of(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    const char *secret, *scope;
    Py_ssize_t secret_size, scope_size;
    PyObject *rows;
    int skips_empty;
    if (!PyArg_ParseTuple(arguments, "y#y#Op", &secret, &secret_size, &scope, &scope_size, &rows, &skips_empty))
        return NULL;
    if (secret_size != KEY_BYTES || scope_size != KEY_BYTES)
        return PyErr_Format(PyExc_ValueError, "a secret and a scope have %d bytes each", KEY_BYTES);
    rows = PySequence_Tuple(rows); /* which nobody changes while a long row is hashed */
    if (rows == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(rows);
    PyObject *keys = PyList_New(count);
    SipState begun = sip_begin((const unsigned char *)secret);
    begun = sip_take(sip_take(begun, sip_word(scope)), sip_word(scope + 8));
    for (Py_ssize_t at = 0; keys != NULL && at < count; at++) {
        PyObject *key = key_of_row(begun, PyTuple_GET_ITEM(rows, at), skips_empty);
        if (key == NULL)
            Py_CLEAR(keys);
        else
            PyList_SET_ITEM(keys, at, key);
    }
    Py_DECREF(rows);
    return keys;
}

/* ── what is kept ─────────────────────────────────────────────────────────────────────────────────── */

/* The bytes of a key; NULL with an error where it is none. */
static const unsigned char *key_bytes(PyObject *key)
{
    if (PyBytes_Check(key) && PyBytes_GET_SIZE(key) == KEY_BYTES)
        return (const unsigned char *)PyBytes_AS_STRING(key);
    PyErr_Format(PyExc_ValueError, "a key has %d bytes, not %R", KEY_BYTES, key);
    return NULL;
}

/* Keys as a tuple, which nobody changes, of which each is a key, or None where that is allowed. NULL with an error. */
static PyObject *checked_keys(PyObject *keys, int may_be_none)
{
    keys = PySequence_Tuple(keys);
    for (Py_ssize_t at = 0; keys != NULL && at < PyTuple_GET_SIZE(keys); at++) {
        PyObject *key = PyTuple_GET_ITEM(keys, at);
        if (!(key == Py_None && may_be_none) && key_bytes(key) == NULL)
            Py_CLEAR(keys);
    }
    return keys;
}

static PyObject *answers_find(Answers *self, PyObject *argument)
{
    PyObject *keys = checked_keys(argument, 1);
    if (keys == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    PyObject *found = PyList_New(count);
    uint64_t tags[STEP];
    Entry *entries[STEP];
    for (Py_ssize_t first = 0; found != NULL && first < count; first += STEP) {
        int some = count - first < STEP ? (int)(count - first) : STEP;
        PyObject *const *step = &PyTuple_GET_ITEM(keys, first);
        for (int at = 0; at < some; at++)
            if (step[at] != Py_None) {
                tags[at] = tag_of((unsigned char *)PyBytes_AS_STRING(step[at]));
                table_expect(&self->table, tags[at]);
            }
        for (int at = 0; at < some; at++) {
            entries[at] = step[at] == Py_None ? NULL : table_guess(&self->table, tags[at]);
            if (entries[at] != NULL)
                __builtin_prefetch(entries[at]);
        }
        for (int at = 0; at < some; at++) {
            PyObject *row = NULL;
            if (entries[at] != NULL) {
                const unsigned char *key = (unsigned char *)PyBytes_AS_STRING(step[at]);
                if (memcmp(entries[at]->key, key, KEY_BYTES) != 0)
                    entries[at] = table_find(&self->table, tags[at], key);
            }
            if (entries[at] == NULL) {
                row = Py_NewRef(Py_None);
            } else {
                entry_hit(entries[at]);
                row = PyBytes_FromStringAndSize((char *)entries[at]->row, entries[at]->size);
            }
            if (row == NULL) {
                Py_CLEAR(found);
                break;
            }
            PyList_SET_ITEM(found, first + at, row);
        }
    }
    Py_DECREF(keys);
    return found;
}

/* So many answers of a source that left one after the other. */
typedef struct {
    uint32_t source;
    uint64_t answers, nbytes;
} Run;

/* What leaves, by whose it was. Python is told at the end: to make its objects may run code that is not ours. */
typedef struct {
    Run *runs;
    size_t count, room;
    int failed; /* there was no memory: what is kept is not what was told */
} Leaving;

static void leaving_take(Leaving *leaving, Entry *entry)
{
    uint32_t source = entry_source(entry);
    if (leaving->count == 0 || leaving->runs[leaving->count - 1].source != source) {
        if (leaving->count == leaving->room) {
            size_t room = leaving->room ? 2 * leaving->room : 16;
            Run *runs = answers_realloc(leaving->runs, room * sizeof *runs);
            if (runs == NULL) {
                leaving->failed = 1;
                entry_free(entry);
                return;
            }
            leaving->runs = runs;
            leaving->room = room;
        }
        leaving->runs[leaving->count++] = (Run){.source = source};
    }
    Run *run = &leaving->runs[leaving->count - 1];
    run->answers++;
    run->nbytes += entry_bytes(entry);
    entry_free(entry);
}

/* [(number of the source, answers, bytes)]; NULL with an error. */
static PyObject *leaving_tell(Leaving *leaving)
{
    PyObject *told = leaving->failed ? no_memory() : PyList_New((Py_ssize_t)leaving->count);
    for (size_t at = 0; told != NULL && at < leaving->count; at++) {
        Run run = leaving->runs[at];
        PyObject *one = Py_BuildValue("kKK", (unsigned long)run.source, (unsigned long long)run.answers,
                                      (unsigned long long)run.nbytes);
        if (one == NULL)
            Py_CLEAR(told);
        else
            PyList_SET_ITEM(told, (Py_ssize_t)at, one);
    }
    PyMem_RawFree(leaving->runs);
    return told;
}

static size_t size_of_row(const Cell *cells, size_t columns, const char *is_text)
{
    size_t size = PREFIX_BYTES, texts = 0;
    for (size_t column = 0; column < columns; column++) {
        size += cells[column].size;
        texts += is_text[column] != 0;
    }
    return size + (texts > 1 ? (texts - 1) * sizeof(uint32_t) : 0);
}

/* As `Source.pack`: the prefix, the numbers, the texts, each but the last after its length. */
static void put_row(unsigned char *row, uint32_t prefix, const Cell *cells, size_t columns, const char *is_text)
{
    size_t texts = 0;
    memcpy(row, &prefix, PREFIX_BYTES);
    row += PREFIX_BYTES;
    for (size_t column = 0; column < columns; column++) {
        if (is_text[column]) {
            texts++;
        } else {
            memcpy(row, cells[column].bytes, cells[column].size);
            row += cells[column].size;
        }
    }
    for (size_t column = 0; texts; column++) {
        if (!is_text[column])
            continue;
        if (--texts) {
            uint32_t size = (uint32_t)cells[column].size;
            memcpy(row, &size, sizeof size);
            row += sizeof size;
        }
        memcpy(row, cells[column].bytes, cells[column].size);
        row += cells[column].size;
    }
}

/* (answers, bytes) that came, and what left for them. cells: row by row, as many a row as there are columns;
 * prefix: None where each row has its own. Where there is no memory to tell it, the caller clears everything. */
static PyObject *keep_cells(Answers *self, PyObject *keys, const Cell *cells, size_t columns, const char *is_text,
                            const uint32_t *prefix)
{
    Table *table = &self->table;
    Leaving leaving = {0};
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    unsigned long long added = 0, added_bytes = 0;
    size_t rounds = 0;
    uint64_t tags[STEP];
    for (Py_ssize_t first = 0; first < count; first += STEP) {
        int some = count - first < STEP ? (int)(count - first) : STEP;
        if (first % COME_TOGETHER == 0)
            rounds = MOST_ROUNDS;
        for (int at = 0; at < some; at++) {
            tags[at] = tag_of((unsigned char *)PyBytes_AS_STRING(PyTuple_GET_ITEM(keys, first + at)));
            table_expect(table, tags[at]);
        }
        for (int at = 0; at < some; at++) {
            const Cell *mine = cells + (size_t)(first + at) * columns;
            const unsigned char *key = (unsigned char *)PyBytes_AS_STRING(PyTuple_GET_ITEM(keys, first + at));
            Entry *entry =
                table_add(table, tags[at], key, prefix == NULL ? mine->size : size_of_row(mine, columns, is_text));
            if (entry == NULL)
                continue;
            if (prefix == NULL)
                memcpy(entry->row, mine->bytes, mine->size);
            else
                put_row(entry->row, *prefix, mine, columns, is_text);
            added++;
            added_bytes += entry_bytes(entry);
            while (table->nbytes > table->capacity_bytes)
                leaving_take(&leaving, table_evict(table, &rounds));
        }
    }
    PyObject *left = leaving_tell(&leaving);
    return left == NULL ? NULL : Py_BuildValue("KKN", added, added_bytes, left);
}

static PyObject *answers_keep(Answers *self, PyObject *arguments)
{
    PyObject *keys, *rows, *told = NULL;
    if (!PyArg_ParseTuple(arguments, "OO", &keys, &rows))
        return NULL;
    keys = checked_keys(keys, 0);
    rows = keys == NULL ? NULL : PySequence_Tuple(rows);
    Cell *cells = NULL;
    if (rows == NULL)
        goto end;
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    if (PyTuple_GET_SIZE(rows) != count) {
        PyErr_SetString(PyExc_ValueError, "there are as many rows as keys");
        goto end;
    }
    cells = PyMem_New(Cell, count);
    if (cells == NULL) {
        no_memory();
        goto end;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *row = PyTuple_GET_ITEM(rows, at);
        if (!PyBytes_Check(row) || PyBytes_GET_SIZE(row) < PREFIX_BYTES) {
            PyErr_SetString(PyExc_ValueError, "a row is bytes, and begins with its source's number");
            goto end;
        }
        cells[at] = (Cell){PyBytes_AS_STRING(row), (size_t)PyBytes_GET_SIZE(row)};
    }
    told = keep_cells(self, keys, cells, 1, NULL, NULL);
end:
    PyMem_Free(cells);
    Py_XDECREF(rows);
    Py_XDECREF(keys);
    return told;
}

/* The cells of one column, each `columns` after the one before. 0, or −1 with an error. */
static int take_column(PyObject *column, Py_ssize_t width, Cell *cells, size_t columns, Py_ssize_t count,
                       Py_buffer *view)
{
    if (width == 0) {
        if (!PyList_CheckExact(column) || PyList_GET_SIZE(column) != count) {
            PyErr_SetString(PyExc_ValueError, "a column of texts is a list, with one for each key");
            return -1;
        }
        for (Py_ssize_t at = 0; at < count; at++) {
            Py_ssize_t size;
            const char *bytes = PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(column, at), &size);
            if (bytes == NULL)
                return -1;
            cells[(size_t)at * columns] = (Cell){bytes, (size_t)size};
        }
        return 0;
    }
    if (PyObject_GetBuffer(column, view, PyBUF_SIMPLE) < 0)
        return -1;
    if (view->len != count * width) {
        PyErr_SetString(PyExc_ValueError, "a column of numbers has a row for each key");
        return -1;
    }
    for (Py_ssize_t at = 0; at < count; at++)
        cells[(size_t)at * columns] = (Cell){(char *)view->buf + at * width, (size_t)width};
    return 0;
}

static PyObject *answers_keep_columns(Answers *self, PyObject *arguments)
{
    PyObject *keys, *widths, *columns, *told = NULL;
    unsigned long number;
    if (!PyArg_ParseTuple(arguments, "OkO!O!", &keys, &number, &PyTuple_Type, &widths, &PyTuple_Type, &columns))
        return NULL;
    size_t width = (size_t)PyTuple_GET_SIZE(columns), views_taken = 0;
    if (PyTuple_GET_SIZE(widths) != PyTuple_GET_SIZE(columns)) {
        PyErr_SetString(PyExc_ValueError, "there are as many widths as columns");
        return NULL;
    }
    keys = checked_keys(keys, 0);
    if (keys == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    uint32_t prefix = (uint32_t)number;
    char *is_text = PyMem_Calloc(width + 1, sizeof *is_text);
    Py_buffer *views = PyMem_Calloc(width + 1, sizeof *views);
    Cell *cells = PyMem_New(Cell, (size_t)count * width + 1);
    int failed = is_text == NULL || views == NULL || cells == NULL;
    if (failed)
        no_memory();
    for (; !failed && views_taken < width; views_taken++) {
        Py_ssize_t bytes = PyLong_AsSsize_t(PyTuple_GET_ITEM(widths, views_taken));
        is_text[views_taken] = bytes == 0;
        failed = (bytes == -1 && PyErr_Occurred()) ||
                 take_column(PyTuple_GET_ITEM(columns, views_taken), bytes, cells + views_taken, width, count,
                             &views[views_taken]) < 0;
    }
    if (!failed)
        told = keep_cells(self, keys, cells, width, is_text, &prefix);
    for (size_t at = 0; at < views_taken; at++)
        if (views[at].obj != NULL)
            PyBuffer_Release(&views[at]);
    PyMem_Free(cells);
    PyMem_Free(views);
    PyMem_Free(is_text);
    Py_DECREF(keys);
    return told;
}

/* ── all of it, part by part ──────────────────────────────────────────────────────────────────────── */

static Part *numbered_part(Answers *self, PyObject *argument)
{
    size_t number = PyLong_AsSize_t(argument);
    if (number == (size_t)-1 && PyErr_Occurred())
        return NULL;
    if (number < self->table.parts)
        return &self->table.part[number];
    PyErr_SetString(PyExc_IndexError, "there is no such part");
    return NULL;
}

/* (keys, lengths of the rows, rows), each one after the other: three objects, however many answers. */
static PyObject *answers_packed(Answers *self, PyObject *argument)
{
    Part *part = numbered_part(self, argument);
    if (part == NULL)
        return NULL;
    size_t rows_size = 0;
    for (size_t place = 0; place < part->places; place++)
        if (part->slots[place].entry != NULL)
            rows_size += part->slots[place].entry->size;
    PyObject *keys = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(part->count * KEY_BYTES));
    PyObject *sizes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(part->count * sizeof(uint32_t)));
    PyObject *rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)rows_size);
    if (keys == NULL || sizes == NULL || rows == NULL) {
        Py_XDECREF(keys);
        Py_XDECREF(sizes);
        Py_XDECREF(rows);
        return NULL;
    }
    char *key = PyBytes_AS_STRING(keys), *size = PyBytes_AS_STRING(sizes), *row = PyBytes_AS_STRING(rows);
    for (size_t place = 0; place < part->places; place++) {
        const Entry *entry = part->slots[place].entry;
        if (entry == NULL)
            continue;
        memcpy(key, entry->key, KEY_BYTES);
        memcpy(size, &entry->size, sizeof entry->size);
        memcpy(row, entry->row, entry->size);
        key += KEY_BYTES;
        size += sizeof entry->size;
        row += entry->size;
    }
    return Py_BuildValue("NNN", keys, sizes, rows);
}

static uint32_t number_at(const char *numbers, size_t at)
{
    uint32_t number;
    memcpy(&number, numbers + at * sizeof number, sizeof number);
    return number;
}

/* sorted: 4 bytes each, ascending. */
static int is_among(uint32_t number, const char *sorted, size_t count)
{
    size_t first = 0;
    while (count) {
        size_t half = count / 2;
        uint32_t there = number_at(sorted, first + half);
        if (there == number)
            return 1;
        if (there < number) {
            first += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return 0;
}

static PyObject *answers_sweep(Answers *self, PyObject *arguments)
{
    PyObject *number;
    const char *gone;
    Py_ssize_t gone_size;
    if (!PyArg_ParseTuple(arguments, "Oy#", &number, &gone, &gone_size))
        return NULL;
    Part *part = numbered_part(self, number);
    if (part == NULL)
        return NULL;
    Leaving leaving = {0};
    size_t count = 0;
    Entry **entries = answers_malloc((part->count + 1) * sizeof *entries);
    if (entries == NULL)
        return no_memory();
    for (size_t place = 0; place < part->places; place++) {
        Entry *entry = part->slots[place].entry;
        if (entry != NULL && is_among(entry_source(entry), gone, (size_t)gone_size / sizeof(uint32_t)))
            entries[count++] = entry; /* a removal moves others: first all are found */
    }
    for (size_t at = 0; at < count; at++) {
        table_remove(&self->table, tag_of(entries[at]->key), entries[at]);
        leaving_take(&leaving, entries[at]);
    }
    PyMem_RawFree(entries);
    return leaving_tell(&leaving);
}

static PyObject *answers_clear(Answers *self, PyObject *Py_UNUSED(none))
{
    table_clear(&self->table);
    Py_RETURN_NONE;
}

static PyObject *answers_contains_key(Answers *self, PyObject *argument)
{
    const unsigned char *key = key_bytes(argument);
    if (key == NULL)
        return NULL;
    return PyBool_FromLong(table_find(&self->table, tag_of(key), key) != NULL);
}

static PyObject *answers_nbytes(Answers *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->table.nbytes);
}

static PyObject *answers_parts(Answers *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(self->table.parts);
}

static Py_ssize_t answers_length(Answers *self) { return (Py_ssize_t)self->table.count; }

/* ── the type ─────────────────────────────────────────────────────────────────────────────────────── */

static PyObject *answers_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(names))
{
    unsigned long long capacity_bytes;
    if (!PyArg_ParseTuple(arguments, "K", &capacity_bytes))
        return NULL;
    Answers *self = (Answers *)type->tp_alloc(type, 0);
    if (self != NULL && table_open(&self->table, capacity_bytes) < 0) {
        Py_DECREF(self);
        return no_memory();
    }
    return (PyObject *)self;
}

static void answers_dealloc(Answers *self)
{
    PyTypeObject *type = Py_TYPE(self);
    table_close(&self->table);
    type->tp_free(self);
    Py_DECREF(type);
}

#ifdef EXTENSION_FAULTS
static PyObject *module_fail_after(PyObject *Py_UNUSED(module), PyObject *argument)
{
    long count = PyLong_AsLong(argument);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    answers_allocations_left = count;
    Py_RETURN_NONE;
}
#endif

static PyMethodDef methods[] = {
    {"find", (PyCFunction)answers_find, METH_O, NULL},
    {"keep", (PyCFunction)answers_keep, METH_VARARGS, NULL},
    {"keep_columns", (PyCFunction)answers_keep_columns, METH_VARARGS, NULL},
    {"packed", (PyCFunction)answers_packed, METH_O, NULL},
    {"sweep", (PyCFunction)answers_sweep, METH_VARARGS, NULL},
    {"clear", (PyCFunction)answers_clear, METH_NOARGS, NULL},
    {"has", (PyCFunction)answers_contains_key, METH_O, NULL},
    {0},
};

static PyGetSetDef getters[] = {
    {"nbytes", (getter)answers_nbytes, NULL, NULL, NULL},
    {"parts", (getter)answers_parts, NULL, NULL, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, answers_new},     {Py_tp_dealloc, answers_dealloc},
    {Py_tp_methods, methods},     {Py_tp_getset, getters},
    {Py_mp_length, answers_length}, {Py_tp_doc, "Kept answers by key; see native_store.py."},
    {0},
};

static PyType_Spec spec = {
    .name = "server.cache.native._answers.Answers",
    .basicsize = sizeof(Answers),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

static int fill(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    Py_DECREF(type);
    return PyModule_AddIntMacro(module, ENTRY_BYTES) < 0 || PyModule_AddIntMacro(module, MOST_ROUNDS) < 0 ||
                   PyModule_AddIntMacro(module, COME_TOGETHER) < 0
               ? -1
               : 0;
}

static PyMethodDef functions[] = {
    {"keys_of", module_keys_of, METH_VARARGS, NULL},
#ifdef EXTENSION_FAULTS
    {"fail_after", module_fail_after, METH_O, NULL},
#endif
    {0},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_answers",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__answers(void) { return PyModuleDef_Init(&definition); }
