"""Arranged matrices and layers as the structs of gw.h, and how much scratch memory their kernels want."""

from __future__ import annotations

from gatewise.export.c.arrays import Arrays
from gatewise.runtime.arrangement import BLOCK, PANEL, SLICE, ArrangedLayer, ArrangedMatrix

CHUNK_ROWS, TRANSPOSE_FROM = 96, 4  # as in gw.c and slices.h, for the sizes of scratch
MATRIX_BYTES, LAYER_BYTES = 10 * 4, 48 * 4  # gw_matrix and gw_layer where a pointer has 4 bytes


class Structs:
    """Definitions, `gw_layer rnn_0 = {...};`, that point to arrays."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.found: list[str] = []
        self.nbytes = 0

    def layer(self, name: str, p: ArrangedLayer) -> str:
        self.nbytes += LAYER_BYTES
        fields = [
            f".cell = GW_{p.cell}",
            f".squash = GW_{p.squash.upper()}",
            f".n_units = {p.n_units}",
            ".gate_start = {" + ", ".join(map(str, p.gate_start)) + "}",
        ]
        folded = p.table is not None
        for field_name, matrix in (("w_ih", p.w_ih), ("w_hh", p.w_hh), ("w_hn", p.w_hn)):
            empty = folded and field_name == "w_ih"
            fields.append(f".{field_name} = {self.matrix_fields(f'{name}_{field_name}', matrix, empty)}")
        for field_name in ("inputs", "reads", "bias", "bias_hn", "live", "fixed", "fixed_hn", "scale"):
            array = getattr(p, field_name)
            if array is not None and (p.cell == "GRU" or not field_name.endswith("_hn")):
                fields.append(f".{field_name} = {self.arrays.add(f'{name}_{field_name}', array)}")
        if p.table is not None:
            kind = "table" if p.table_scale is None else "table_codes"
            fields.append(f".{kind} = {self.arrays.add(f'{name}_{kind}', p.table)}")
        if p.table_scale is not None:
            fields.append(f".table_scale = {self.arrays.add(f'{name}_table_scale', p.table_scale)}")
        self.found.append(f"gw_layer {name} = {{\n        " + ",\n        ".join(fields) + "};")
        return name

    def matrix(self, name: str, arranged: ArrangedMatrix) -> str:
        self.nbytes += MATRIX_BYTES
        self.found.append(f"gw_matrix {name} = {self.matrix_fields(name, arranged)};")
        return name

    def matrix_fields(self, name: str, p: ArrangedMatrix, empty: bool = False) -> str:
        fields = [f".rows = {p.rows}", f".cols = {p.cols}", f".last = {p.last}"]
        if p.rows and not empty:
            kind = "values" if p.scale is None else "codes"
            fields.append(f".{kind} = {self.arrays.add(f'{name}_{kind}', p.values)}")
            for field_name in ("scale", "start", "column", "row"):
                array = getattr(p, field_name)
                if array is not None:
                    fields.append(f".{field_name} = {self.arrays.add(f'{name}_{field_name}', array)}")
        return "{" + ", ".join(fields) + "}"


def product_scratch(w: ArrangedMatrix, m: int) -> int:
    if w.scale is not None or m < TRANSPOSE_FROM:
        return 0
    return w.cols * {"dense": 0, "sparse": SLICE, "masked": PANEL}[w.form]


def layer_scratch(layer: ArrangedLayer, steps: int, batch: int = 1) -> int:
    """gw_layer_scratch(), in floats."""
    m = min(steps * batch, max(batch, CHUNK_ROWS))
    padded = -(-layer.w_ih.rows // BLOCK) * BLOCK
    inputs = m * layer.w_ih.cols + product_scratch(layer.w_ih, m)
    rows = max(product_scratch(layer.w_hh, batch), product_scratch(layer.w_hn, batch))
    return m * padded + batch * layer.w_hn.rows + 2 * BLOCK + max(inputs, batch * layer.w_hh.cols + rows)
