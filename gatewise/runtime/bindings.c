/* The Python side of network.h: a type whose run() costs a fraction of a microsecond on top of the kernels.
 *
 * bindings.py lays out gw_network and everything it points to, keeps that memory alive, and hands over its address.
 * Arrays come through the buffer protocol and are checked for type and size; a plain int is taken as the address of
 * memory the caller has checked, which is how torch tensors come in without a detour.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>

#include "kernels/network.h"

enum { SMALL_WORK = 200000 }; /* multiplications under which giving the GIL away costs more than it helps */

typedef struct {
    PyObject_HEAD
    const gw_network *net;
    int64_t work;    /* multiplications per step and sequence */
    int32_t phase;   /* turns with every call */
    gw_call last;    /* whose steps, sequences and threads need this scratch: */
    size_t scratch_size;
    float *spare;    /* scratch of the last call, if nobody uses it */
    size_t spare_size;
} Network;

typedef struct {
    Py_buffer view;
    int held;
} Memory;

static void memory_release(Memory *m) {
    if (m->held) PyBuffer_Release(&m->view);
    m->held = 0;
}

/* The address of at least `count` items of the given kind ('f', 'q' or 'i'), or NULL with an exception set. */
static void *memory_take(Memory *m, PyObject *object, const char *name, char kind, size_t count, int writable) {
    const size_t item = kind == 'q' ? 8 : 4;
    m->held = 0;
    if (PyLong_Check(object)) {
        void *address = PyLong_AsVoidPtr(object);
        if (!address && !PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s: the address is 0", name);
        return address;
    }
    if (PyObject_GetBuffer(object, &m->view, PyBUF_ND | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0))) return NULL;
    m->held = 1;
    const char *format = m->view.format ? m->view.format : "B";
    const char is = format[0] == 'l' && m->view.itemsize == 8 ? 'q' : format[0] == 'l' ? 'i' : format[0];
    if (is != kind || format[1] || (size_t)m->view.itemsize != item) {
        PyErr_Format(PyExc_TypeError, "%s: expected %s, got items of format '%s'", name,
                     kind == 'f' ? "float32" : kind == 'q' ? "int64" : "int32", format);
    } else if ((size_t)m->view.len != count * item) {
        PyErr_Format(PyExc_ValueError, "%s: expected %zu items, got %zd", name, count, m->view.len / (Py_ssize_t)item);
    } else {
        return m->view.buf;
    }
    memory_release(m);
    return NULL;
}

static int positive(PyObject *object, const char *name, int32_t *value) {
    const long n = PyLong_AsLong(object);
    if (n == -1 && PyErr_Occurred()) return 0;
    if (n < 1 || n > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%s: expected a number from 1 on, got %ld", name, n);
        return 0;
    }
    *value = (int32_t)n;
    return 1;
}

static size_t scratch_size(Network *self, const gw_call *call) {
    const gw_call *last = &self->last;
    if (call->steps != last->steps || call->size != last->size || call->threads != last->threads) {
        self->scratch_size = gw_network_scratch(self->net, call) + GW_BLOCK;
        self->last = *call;
    }
    return self->scratch_size;
}

/* Scratch belongs to one call at a time. Both functions run under the GIL. */
static float *scratch_take(Network *self, size_t size) {
    if (self->spare && self->spare_size >= size) {
        float *scratch = self->spare;
        self->spare = NULL;
        return scratch;
    }
    return malloc(sizeof(float) * size);
}

static void scratch_give(Network *self, float *scratch, size_t size) {
    free(self->spare);
    self->spare = scratch;
    self->spare_size = size;
}

/* Scratch has one block more than needed: a vector that crosses a cache line costs two reads. */
static float *scratch_aligned(float *scratch) {
    return scratch + (64 - (uintptr_t)scratch % 64) % 64 / sizeof(float);
}

static PyObject *bad_word(const gw_network *net, const gw_call *call, size_t at) {
    return PyErr_Format(PyExc_IndexError, "word id %lld at position %zu is outside 0..%d", (long long)call->ids[at], at,
                        (int)net->n_words - 1);
}

/* Runs a call whose memory was checked: 1, or 0 with an exception set. */
static int call_run(Network *self, gw_call *call) {
    const size_t items = (size_t)call->steps * (size_t)call->size, size = scratch_size(self, call);
    float *scratch = scratch_take(self, size);
    if (!scratch) {
        PyErr_NoMemory();
        return 0;
    }
    float *const aligned = scratch_aligned(scratch);
    size_t good;
    call->phase = self->phase ^= 1;
    if (self->work * (int64_t)items < SMALL_WORK) {
        good = gw_network_run(self->net, call, aligned);
    } else {
        Py_BEGIN_ALLOW_THREADS
        good = gw_network_run(self->net, call, aligned);
        Py_END_ALLOW_THREADS
    }
    scratch_give(self, scratch, size);
    if (good < items) bad_word(self->net, call, good);
    return good == items;
}

PyDoc_STRVAR(run_doc,
             "run(x, state, y, steps, batch, batch_first, lengths, threads)\n\n"
             "Runs `batch` sequences of `steps` steps. x: float32 (T, B, n_in) or int64 ids (T, B); y: float32\n"
             "(T, B, width), or (B, width) where the network is `final`; batch_first swaps T and B in both.\n"
             "state: float32, `state_size` items for each sequence, read and overwritten. lengths: int32 (B) or None.\n"
             "Arrays are buffers or addresses; of the latter nothing is checked.");

static PyObject *network_run(Network *self, PyObject *const *args, Py_ssize_t n_args) {
    const gw_network *net = self->net;
    gw_call call = {.threads = 1};
    Memory x = {.held = 0}, state = {.held = 0}, y = {.held = 0}, lengths = {.held = 0};
    PyObject *answer = NULL;
    if (n_args != 8) return PyErr_Format(PyExc_TypeError, "run() takes 8 arguments, got %zd", n_args);
    if (!positive(args[3], "steps", &call.steps) || !positive(args[4], "batch", &call.size) ||
        !positive(args[7], "threads", &call.threads))
        return NULL;
    call.batch_first = PyObject_IsTrue(args[5]);
    if (call.batch_first < 0) return NULL;

    const size_t items = (size_t)call.steps * (size_t)call.size, width = (size_t)gw_network_width(net);
    const ptrdiff_t time = call.batch_first ? 1 : call.size, sequence = call.batch_first ? call.steps : 1;
    if (items > INT32_MAX) return PyErr_Format(PyExc_ValueError, "steps * batch = %zu is more than 2^31 - 1", items);
    if (net->n_words)
        call.ids = memory_take(&x, args[0], "x", 'q', items, 0);
    else
        call.x = (gw_const_steps){memory_take(&x, args[0], "x", 'f', items * (size_t)net->n_in, 0), time * net->n_in,
                                  sequence * net->n_in};
    if (!call.ids && !call.x.data) goto done;
    call.state = memory_take(&state, args[1], "state", 'f', gw_network_state(net, call.size), 1);
    if (!call.state) goto done;
    call.y.data = memory_take(&y, args[2], "y", 'f', (net->final ? (size_t)call.size : items) * width, 1);
    if (!call.y.data) goto done;
    call.y.time = net->final ? 0 : time * (ptrdiff_t)width;
    call.y.batch = (net->final ? 1 : sequence) * (ptrdiff_t)width;
    if (args[6] != Py_None) {
        call.lengths = memory_take(&lengths, args[6], "lengths", 'i', (size_t)call.size, 0);
        if (!call.lengths) goto done;
        for (int32_t b = 0; b < call.size; b++)
            if (call.lengths[b] < 0 || call.lengths[b] > call.steps) {
                PyErr_Format(PyExc_ValueError, "lengths: sequence %d has length %d, outside 0..%d", (int)b,
                             (int)call.lengths[b], (int)call.steps);
                goto done;
            }
    }

    if (call_run(self, &call)) answer = Py_NewRef(Py_None);
done:
    memory_release(&x);
    memory_release(&state);
    memory_release(&y);
    memory_release(&lengths);
    return answer;
}

PyDoc_STRVAR(step_doc,
             "step(x, how)\n\n"
             "One step into a fresh array, how = (state, batch, threads, empty, answer, dtype): y = empty(answer, dtype) is\n"
             "float32 (B, width); state as in run(). None, and no step, where x is not float32 (B, n_in) or int64 ids (B)\n"
             "in one piece.");

static PyObject *network_step(Network *self, PyObject *const *args, Py_ssize_t n_args) {
    const gw_network *net = self->net;
    gw_call call = {.steps = 1};
    Memory x = {.held = 0}, state = {.held = 0}, y = {.held = 0};
    PyObject *how[6], *answer = NULL;
    if (n_args != 2 || !PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != 6)
        return PyErr_Format(PyExc_TypeError, "step() takes an array and a tuple of 6");
    for (int i = 0; i < 6; i++) how[i] = PyTuple_GetItem(args[1], i);
    if (!positive(how[1], "batch", &call.size) || !positive(how[2], "threads", &call.threads)) return NULL;

    const size_t batch = (size_t)call.size, width = (size_t)gw_network_width(net);
    if (net->n_words)
        call.ids = memory_take(&x, args[0], "x", 'q', batch, 0);
    else
        call.x = (gw_const_steps){memory_take(&x, args[0], "x", 'f', batch * (size_t)net->n_in, 0), 0, net->n_in};
    if (!x.held || x.view.ndim != (net->n_words ? 1 : 2) || x.view.shape[0] != call.size) {
        PyErr_Clear();
        answer = Py_NewRef(Py_None);
        goto done;
    }
    call.state = memory_take(&state, how[0], "state", 'f', gw_network_state(net, call.size), 1);
    if (call.state) answer = PyObject_CallFunctionObjArgs(how[3], how[4], how[5], NULL);
    if (answer) call.y = (gw_steps){memory_take(&y, answer, "y", 'f', batch * width, 1), 0, (ptrdiff_t)width};
    if (!call.y.data || !call_run(self, &call)) Py_CLEAR(answer);
done:
    memory_release(&x);
    memory_release(&state);
    memory_release(&y);
    return answer;
}

static int64_t matrix_work(const gw_matrix *w) { return (int64_t)w->rows * w->cols; }

static PyObject *network_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *address;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Network() takes no keywords");
    if (!PyArg_ParseTuple(args, "O!", &PyLong_Type, &address)) return NULL;
    Network *self = (Network *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->net = PyLong_AsVoidPtr(address);
    if (!self->net) {
        Py_DECREF(self);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "the address is 0");
    }
    self->work = self->net->has_head ? matrix_work(&self->net->head) : 0;
    for (int32_t i = 0; i < self->net->n_levels * self->net->n_directions; i++) {
        const gw_layer *layer = &self->net->layers[i];
        self->work += matrix_work(&layer->w_ih) + matrix_work(&layer->w_hh) + matrix_work(&layer->w_hn);
    }
    return (PyObject *)self;
}

static void network_dealloc(Network *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->spare);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *network_state_size(Network *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(gw_network_state(self->net, 1));
}

static PyObject *network_width(Network *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(gw_network_width(self->net));
}

/* The casts go through void (*)(void), which says that the differing signatures are meant. */
static PyMethodDef network_methods[] = {
    {"run", (PyCFunction)(void (*)(void))network_run, METH_FASTCALL, run_doc},
    {"step", (PyCFunction)(void (*)(void))network_step, METH_FASTCALL, step_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef network_properties[] = {
    {"state_size", (getter)network_state_size, NULL, "floats of state for each sequence", NULL},
    {"width", (getter)network_width, NULL, "floats of output for each step", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot network_slots[] = {
    {Py_tp_new, (void *)(uintptr_t)network_new},
    {Py_tp_dealloc, (void *)(uintptr_t)network_dealloc},
    {Py_tp_methods, network_methods},
    {Py_tp_getset, network_properties},
    {Py_tp_doc, "A gw_network at a given address, ready to run."},
    {0, NULL},
};

static PyType_Spec network_spec = {
    .name = "gatewise.runtime._native.Network",
    .basicsize = sizeof(Network),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = network_slots,
};

static int module_exec(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &network_spec, NULL);
    const int failed = !type || PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    if (failed) return -1;
    return PyModule_AddIntConstant(module, "LAYOUT", GW_LAYOUT) ||
                   PyModule_AddIntConstant(module, "LAYER_BYTES", sizeof(gw_layer)) ||
                   PyModule_AddIntConstant(module, "NETWORK_BYTES", sizeof(gw_network))
               ? -1
               : 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)(uintptr_t)module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "gatewise.runtime._native",
    .m_doc = "Compact recurrent networks in C; use gatewise.runtime.bindings.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
