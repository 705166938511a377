"""Other runtimes on the networks of the inference benchmarks, each from the same ONNX file with its sizes fixed.

    ONNX Runtime, OpenVINO      read the file as it is
    MNN, ncnn                   have converters: mnnconvert, pnnx
    emx-onnx-cgen               writes C, compiled here with -O3 -march=native -ffast-math and called in a loop in C;
                                under avx2_alone.py without the instructions of AVX-512

All run in float32 on the threads that are asked for. `pip install gatewise[bench]` brings them; one that is not
installed, or that does not take a network, is left out and named.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from machine import march

Call = Callable[[], Any]


class LeftOut(Exception):
    """Why a rival does not take part."""


class Rival:
    """A network in another runtime. Inputs are x and the states, outputs y and the states, in the same order."""

    package = ""  # to import
    batches = True  # more than one sequence at a time
    keeps = True  # what was fed is still there after a call
    sequences = True  # more than one step in a call
    words = True  # integers as inputs

    def __init__(self, path: Path, threads: int) -> None:
        raise NotImplementedError

    def feed(self, x: np.ndarray) -> None:
        raise NotImplementedError

    def run(self) -> Any:
        """One call from what was fed; the answer, y first."""
        raise NotImplementedError

    def carry(self) -> None:
        """The states of the answer become those of the next call."""
        raise NotImplementedError

    def call(self, xs: Sequence[np.ndarray], carry: bool) -> Call:
        """Every call takes the next of several inputs; of a single one, nothing is fed again."""
        ring, feed, run, carried = cycle(xs), self.feed, self.run, self.carry
        again = len(xs) > 1 or not self.keeps
        feed(xs[0])

        def call() -> Any:
            if again:
                feed(next(ring))
            answer = run()
            if carry:
                carried()
            return answer

        return call


class Runtime(Rival):
    package = "onnxruntime"

    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [y.name for y in self.session.get_outputs()]
        self.first, *self.states = (given.name for given in self.session.get_inputs())
        self.given = zero_states(path)
        self.answer: list[np.ndarray] = []

    def feed(self, x: np.ndarray) -> None:
        self.given[self.first] = x

    def run(self) -> Any:
        self.answer = self.session.run(self.names, self.given)
        return self.answer

    def carry(self) -> None:
        self.given.update(zip(self.states, self.answer[1:]))


class OpenVINO(Rival):
    package = "openvino"

    def __init__(self, path: Path, threads: int) -> None:
        import openvino

        options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        model = openvino.Core().compile_model(str(path), "CPU", options)
        self.request = model.create_infer_request()
        # Its own memory, written and read in place: a call with arrays takes ten times as long.
        self.x, *self.before = (self.request.get_input_tensor(k).data for k in range(len(model.inputs)))
        self.y, *self.after = (self.request.get_output_tensor(k).data for k in range(len(model.outputs)))
        for state in self.before:
            state[...] = 0

    def feed(self, x: np.ndarray) -> None:
        self.x[...] = x

    def run(self) -> Any:
        self.request.infer()
        return [self.y]

    def carry(self) -> None:
        for before, after in zip(self.before, self.after):
            before[...] = after


class MNN(Rival):
    package = "MNN"
    keeps = False  # it computes in the memory of its inputs, too
    sequences = False  # a session fails on its loops; its modules take 4 times as long as ONNX Runtime

    def __init__(self, path: Path, threads: int) -> None:
        import MNN

        target = path.with_suffix(".mnn")
        options = ["-f", "ONNX", "--modelFile", str(path), "--MNNModel", str(target), "--bizCode", "x"]
        # Its own command would install a package and report to its makers first.
        convert = "import sys, _tools; _tools.mnnconvert(sys.argv)"
        tool([sys.executable, "-c", convert, *options], target)
        self.net = MNN.Interpreter(str(target))
        self.session = self.net.createSession({"numThread": threads, "precision": "high"})
        given, answers = self.net.getSessionInputAll(self.session), self.net.getSessionOutputAll(self.session)
        names, out = (
            [value.name for value in values] for values in (graph_of(path).input, graph_of(path).output)
        )
        self.x, self.y = given[names[0]], answers[out[0]]
        self.states = [(given[a], answers[b]) for a, b in zip(names[1:], out[1:])]
        for state, _ in self.states:
            state.getNumpyData()[...] = 0
        self.memory = self.x.getNumpyData()  # its own, not a copy

    def feed(self, x: np.ndarray) -> None:
        self.memory[...] = x

    def run(self) -> Any:
        self.net.runSession(self.session)
        return [self.y.getNumpyData()]

    def carry(self) -> None:
        for given, answer in self.states:
            given.copyFrom(answer)


class Ncnn(Rival):
    """Its recurrent layers read one sequence, (T, I)."""

    package, batches = "ncnn", False
    words = False  # its binding ends the program
    HALVES: ClassVar = ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage")

    def __init__(self, path: Path, threads: int) -> None:
        import ncnn
        import pnnx

        target = path.with_suffix(".ncnn.bin")
        tool([str(Path(pnnx.__file__).parent / "pnnx"), str(path), "fp16=0"], target)
        self.ncnn, self.net = ncnn, ncnn.Net()
        self.net.opt.num_threads = threads
        for half in self.HALVES:
            setattr(self.net.opt, f"use_{half}", False)
        self.net.load_param(str(target.with_suffix(".param")))
        self.net.load_model(str(target))
        self.names = sorted(self.net.input_names()), sorted(self.net.output_names())
        self.x: Any = None
        self.states = [ncnn.Mat(zeros[0]) for zeros in zero_states(path).values()]
        self.answer: list[Any] = []

    def feed(self, x: np.ndarray) -> None:
        row = x[:, 0]
        self.held = np.ascontiguousarray(row, np.int32 if row.ndim == 1 else np.float32)
        self.x = self.ncnn.Mat(self.held)

    def run(self) -> Any:
        given, wanted = self.names
        with self.net.create_extractor() as extractor:
            for name, value in zip(given, (self.x, *self.states)):
                extractor.input(name, value)
            self.answer = [extractor.extract(name)[1] for name in wanted]
        return [np.array(self.answer[0])]

    def carry(self) -> None:
        self.states = self.answer[1:]


class Emx(Rival):
    package = "emx_onnx_cgen"

    def __init__(self, path: Path, threads: int) -> None:
        folder = Path(tempfile.mkdtemp(dir=path.parent))
        made = folder / "model.c"
        tool([sys.executable, "-m", "emx_onnx_cgen", "compile", str(path), str(made)], made)
        graph = graph_of(path)
        (folder / "repeat.c").write_text(repeat_source(len(graph.input) - 1))
        flags = f"-O3 {march()} -ffast-math -w -shared -fPIC".split()
        tool(
            ["cc", *flags, str(folder / "repeat.c"), "-o", str(folder / "repeat.so"), "-lm"],
            folder / "repeat.so",
        )
        self.library = ctypes.CDLL(str(folder / "repeat.so"))
        if hasattr(self.library, "model_load"):
            for weights in folder.glob("*.bin"):
                self.library.model_load(str(weights).encode())
        self.y, *after = (np.zeros(sizes_of(value), np.float32) for value in graph.output)
        before = list(zero_states(path).values())
        self.keep = before, after
        self.states = [addresses(arrays) for arrays in (before, after)]

    def call(self, xs: Sequence[np.ndarray], carry: bool) -> Call:
        return EmxCall(self, xs, carry)


class EmxCall:
    """repeat(n) makes n calls in C."""

    def __init__(self, rival: Emx, xs: Sequence[np.ndarray], carry: bool) -> None:
        self.rival, self.n = rival, 0
        self.xs = [np.ascontiguousarray(x) for x in xs]
        self.arguments = (
            addresses(self.xs),
            len(xs),
            *rival.states,
            ctypes.c_void_p(rival.y.ctypes.data),
            carry,
        )

    def repeat(self, n: int) -> None:
        self.rival.library.repeat(self.n, n, *self.arguments)
        self.n += n

    def __call__(self) -> Any:
        self.repeat(1)
        return [self.rival.y]


def repeat_source(states: int) -> str:
    """n calls of the generated function, of which number `first` is the next; the states swap their memory."""
    before, after = (", ".join(f"{name}[{k}]" for k in range(states)) for name in ("before", "after"))
    arguments = ", ".join(text for text in ("x[i % inputs]", before, "y", after) if text)
    return f"""#include "model.c"
void repeat(int first, int n, void **x, int inputs, void **before, void **after, void *y, int carry) {{
    for (int i = first; i < first + n; i++) {{
        model({arguments});
        for (int k = 0; carry && k < {states}; k++) {{
            void *t = before[k];
            before[k] = after[k];
            after[k] = t;
        }}
    }}
}}
"""


def addresses(arrays: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))


def tool(command: list[str], made: Path) -> None:
    """Runs a converter, which may end well without having made anything."""
    done = subprocess.run(command, cwd=made.parent, capture_output=True, text=True)
    if done.returncode or not made.exists():
        said = (done.stderr or done.stdout).strip().splitlines() or [f"ended with {done.returncode}"]
        raise LeftOut(f"its converter fails: {said[-1][:100]}")


def fixed(path: Path, steps: int, batch: int) -> Path:
    """The same graph for T steps of B sequences: not every runtime takes sizes that are open."""
    model, sizes = onnx.load(path), {"time": steps, "batch": batch}
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in sizes:
                axis.dim_value = sizes[axis.dim_param]
    target = path.with_name(f"{path.stem} {steps} {batch}.onnx".replace(" ", "_"))
    onnx.save(model, target)
    return target


def graph_of(path: Path) -> Any:
    return onnx.load(path, load_external_data=False).graph


def sizes_of(value: Any) -> list[int]:
    return [axis.dim_value or 1 for axis in value.type.tensor_type.shape.dim]


def zero_states(path: Path) -> dict[str, np.ndarray]:
    return {value.name: np.zeros(sizes_of(value), np.float32) for value in graph_of(path).input[1:]}


RIVALS: dict[str, type[Rival]] = {
    "onnx": Runtime, "openvino": OpenVINO, "mnn": MNN, "ncnn": Ncnn, "emx C": Emx
}  # fmt: skip


def rival_call(name: str, path: Path, threads: int, xs: Sequence[np.ndarray], carry: bool) -> Call:
    """A call of a rival on a network whose sizes are fixed, from the zero state.

    Raises:
        LeftOut: it is not installed, or does not take this network.
    """
    kind = RIVALS[name]
    if importlib.util.find_spec(kind.package) is None:
        raise LeftOut("is not installed")
    if xs[0].shape[1] > 1 and not kind.batches:
        raise LeftOut("takes one sequence at a time")
    if xs[0].shape[0] > 1 and not kind.sequences:
        raise LeftOut("takes one step at a time")
    if xs[0].dtype != np.float32 and not kind.words:
        raise LeftOut("takes no words")
    try:
        return kind(path, threads).call(xs, carry)
    except LeftOut:
        raise
    except Exception as error:  # whatever another runtime raises
        raise LeftOut(f"does not take it: {last_line(error)}") from error


def last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:100]
